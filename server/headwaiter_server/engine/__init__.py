"""The engine: the models, the scheduler and the devices, and what the services ask of them."""
