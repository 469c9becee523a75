// What the tabs share that load something for the chosen model.

/**
 * Return a tab that runs the loader `load` while it is shown, if the model or the input has changed since the last load
 * that did not fail. `use` gets the description of the chosen model, or null if there is none.
 */
export function loadedTab({ use, load }) {
    let isShown = false;
    let isReady = false; // Whether there is a model.
    let isStale = true;

    /** Load anew, now or when the tab is shown. */
    function changed() {
        isStale = true;
        if (isShown && isReady) load.run();
        else load.cancel(); // Its result would count as the newest.
    }

    return {
        useModel(model) {
            isReady = model !== null;
            use(model);
            changed();
        },
        shown() {
            isShown = true;
            if (isReady && isStale && !load.isRunning) load.run();
        },
        left() {
            isShown = false;
        },
        changed,
        /** Keep what a load has given until something changes. */
        loaded() {
            isStale = false;
        },
    };
}
