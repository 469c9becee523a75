// Whether the page is dark, and when that changes.

const query = matchMedia("(prefers-color-scheme: dark)");

/** Return whether the page is dark. */
export function isDark() {
    return query.matches;
}

/** Call a function whenever the page becomes dark or light. */
export function onTheme(act) {
    query.addEventListener("change", act);
}
