// What the cards and tabs share that load something: a result, and an error above it.
import { byId, isBusy, say } from "./dom.js";
import { loader } from "./loader.js";

/**
 * Return the loader of a card: `work` returns what to show, or nothing, and `show` shows it in `NAME-result`, which is
 * hidden until then. While a load runs, the older result is marked as old. If the load fails, the older result stays below
 * the error, unless `mayStay` returns false for it. `NAME-status`, if the page has it, tells both.
 */
export function loadedCard(name, work, show, mayStay = () => true) {
    const [result, error] = [byId(`${name}-result`), byId(`${name}-error`)];
    const status = byId(`${name}-status`);
    const hasOwnCard = byId(`${name}-card`);
    let shown = null;

    function tell(busy, words, message) {
        isBusy(hasOwnCard ? `${name}-card` : `${name}-result`, busy);
        if (status) status.textContent = words;
        say(error, message);
    }

    const loading = loader(
        (signal) => {
            tell(true, "Computing …", error.textContent);
            return work(signal);
        },
        (value) => {
            shown = value ?? null;
            tell(false, "", "");
            result.hidden = !shown;
            if (shown) show(shown);
        },
        ({ message }) => {
            if (shown && !mayStay(shown)) shown = null;
            result.hidden = !shown;
            tell(false, shown ? "The page still shows the result before." : "", message);
        },
    );

    return {
        run: loading.run,
        cancel: loading.cancel,
        get isRunning() {
            return loading.isRunning;
        },
        /** What the last load that did not fail has returned; null if there is none. */
        get shown() {
            return shown;
        },
        /** Show nothing of the last reply. */
        forget() {
            loading.cancel();
            shown = null;
            tell(false, "", "");
            result.hidden = true;
        },
    };
}
