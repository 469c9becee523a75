// What the tabs share that load something for the chosen model.

/**
 * Return a tab that runs the loader `load` while it is shown, if the model or the input has changed since the last load
 * that did not fail. `use` gets the description of the chosen model, or null if there is none. `state` returns what the
 * address holds of the tab. `restore` shows that again, and returns whether it has to be loaded.
 */
export function loadedTab({ use, load, state = () => ({}), restore = () => false }) {
    let isShown = false;
    let model = null;
    let isStale = true;

    /** Load anew, now or when the tab is shown. */
    function changed() {
        isStale = true;
        if (isShown && model) load.run();
        else load.cancel(); // Its result would count as the newest.
    }

    return {
        useModel(description, linked) {
            model = description;
            use(model);
            if (linked) restore(linked);
            changed();
        },
        shown() {
            isShown = true;
            if (model && isStale && !load.isRunning) load.run();
        },
        left() {
            isShown = false;
        },
        changed,
        /** Keep what a load has given until something changes. */
        loaded() {
            isStale = false;
        },
        state,
        /** Show the state of an address. */
        useState(linked) {
            if (restore(linked)) changed();
        },
    };
}
