// Keeps the address of the page in step with what the page shows, so that reload, Back and copied links show the same.
import { copied } from "./clipboard.js";
import { byId, say } from "./dom.js";
import { isOfOtherVersion, readState, writeState } from "./link_state.js";
import { debounced } from "./loader.js";

// A slider that is moved, or a key that is held down, makes one step for Back.
const REST_MS = 300;
const DIGEST_CHARACTERS = 12;
const ACTS = ["pointerdown", "keydown", "input", "change"];

/**
 * Return the address. `shown` returns the state that the page shows, or null while there is no model; `show` shows a
 * state of the address, after Back and Forward.
 */
export function pageAddress(shown, show) {
    let opened = readState(location.hash.slice(1));
    let model = null;
    // Only what the user does is a step for Back. What the page adds by itself replaces the last step: otherwise Back
    // would lead to a step from which the page goes on at once.
    let hasActed = false;
    let isStep = false; // Whether the change that is to be written comes from the user.

    function write() {
        const state = shown();
        if (!state) return;
        const isOpened = !isStep && opened.model === state.model;
        const digest = (isOpened && opened.digest) || state.digest.slice(0, DIGEST_CHARACTERS);
        const fragment = writeState({ ...state, digest });
        if (fragment !== location.hash.slice(1)) {
            history[isStep ? "pushState" : "replaceState"](null, "", `#${fragment}`);
            if (isStep) opened = {};
        }
        isStep = false;
        warn();
    }

    function warn() {
        const other = isOfOtherVersion(opened, model);
        const words = `This link was made with another version of ${opened.model}: its numbers may have been different.`;
        say(byId("link-note"), other ? words : "");
    }

    const writeLater = debounced(write, REST_MS);

    function changed() {
        isStep ||= hasActed;
        hasActed = false;
        writeLater();
    }

    for (const act of ACTS) addEventListener(act, () => (hasActed = true), { capture: true });
    addEventListener("popstate", () => {
        opened = readState(location.hash.slice(1));
        hasActed = isStep = false;
        warn();
        show(opened);
    });
    byId("copy-link").addEventListener("click", async () => {
        write();
        byId("copied-link").textContent = await copied(location.href);
    });

    return {
        /** The state of the address with which the page was opened. */
        opened,
        /** Follow a change of what the page shows. */
        changed,
        /** Compare the version of the chosen model, or null, with that of the link. */
        useModel(newest) {
            model = newest;
            warn();
            changed();
        },
    };
}
