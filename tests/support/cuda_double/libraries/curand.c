/* libcurand.so.10: the provider links to this library, and calls nothing in it. */

typedef int curand_has_no_functions;
