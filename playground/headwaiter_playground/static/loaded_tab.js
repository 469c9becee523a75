// What the tabs share that load something for the chosen model.

/**
 * Return a tab that calls `load` while it is shown, if the model or the input has changed since the last load that did
 * not fail. `use` gets the description of the chosen model, or null if there is none.
 */
export function loadedTab({ use, load }) {
    let isShown = false;
    let isReady = false; // Whether there is a model.
    let isStale = true;

    function loadIfStale() {
        if (isShown && isReady && isStale) load();
    }

    return {
        useModel(model) {
            isReady = model !== null;
            isStale = true;
            use(model);
            loadIfStale();
        },
        shown() {
            isShown = true;
            loadIfStale();
        },
        left() {
            isShown = false;
        },
        /** Load anew, now or when the tab is shown. */
        changed() {
            isStale = true;
            loadIfStale();
        },
        /** Keep what a load has given until something changes. */
        loaded() {
            isStale = false;
        },
    };
}
