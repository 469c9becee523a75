// The controls of the what-if: masks, a temperature, and the tokens that are crossed out.
import { AS_COMPUTED } from "./attention_maths.js";
import { byId } from "./dom.js";
import { fixed } from "./numbers.js";

/** Return the controls, whose `settings` are those of `attention_maths.js`; `changed` is called when they change. */
export function whatIf(changed) {
    const temperature = byId("temperature");
    let settings = AS_COMPUTED;

    function read() {
        settings = {
            ...settings,
            causal: byId("causal").checked,
            noSelf: byId("no-self").checked,
            temperature: Number(temperature.value),
        };
        byId("temperature-value").textContent = fixed(settings.temperature, 1);
        changed();
    }

    function reset() {
        byId("causal").checked = byId("no-self").checked = false;
        settings = AS_COMPUTED;
        temperature.value = "1";
        read();
    }

    for (const id of ["causal", "no-self", "temperature"]) byId(id).addEventListener("input", read);
    byId("reset").addEventListener("click", reset);
    return {
        get settings() {
            return settings;
        },
        reset,
        /** Hide a token from all others, or show it again. */
        crossOut(position) {
            const crossedOut = new Set(settings.crossedOut);
            if (!crossedOut.delete(position)) crossedOut.add(position);
            settings = { ...settings, crossedOut };
            changed();
        },
        /** Show all tokens again, except for some of those that are crossed out. */
        keepCrossedOut(isKept) {
            settings = { ...settings, crossedOut: new Set([...settings.crossedOut].filter(isKept)) };
        },
        /** Show settings of an address, of which each may be missing; the controls keep them within their limits. */
        show({ causal = false, noSelf = false, temperature: wanted = 1, crossedOut = [] }) {
            byId("causal").checked = causal;
            byId("no-self").checked = noSelf;
            temperature.value = wanted;
            settings = { ...settings, crossedOut: new Set(crossedOut) };
            read();
        },
    };
}
