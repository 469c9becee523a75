// The small heat maps of all heads of a layer, as buttons that choose a head.
import { element } from "./dom.js";
import { drawHead } from "./heat_maps.js";
import { isDark } from "./theme.js";

/** Return an object that shows the heads of a layer in an element, and calls `choose` with the index of a head. */
export function headMaps(box, choose) {
    let drawn = [];

    function make(heads) {
        const buttons = Array.from({ length: heads }, (_, head) => {
            const canvas = element("canvas", { "aria-hidden": "true" });
            const button = element("button", { type: "button" }, canvas, `Head ${head}`);
            button.addEventListener("click", () => choose(head));
            return button;
        });
        box.replaceChildren(...buttons);
    }

    return {
        /**
         * Mark the chosen head of a layer. `weightsOf` returns the weights of a head, [tokens, tokens], which depend on
         * `layer` and `settings` alone: the maps are drawn anew only for other objects of these, or in another theme.
         */
        show(layer, settings, chosen, weightsOf) {
            if (box.children.length !== layer.heads) make(layer.heads);
            [...box.children].forEach((button, head) => button.setAttribute("aria-pressed", String(head === chosen)));
            const wanted = [layer, settings, isDark()];
            if (wanted.every((each, index) => each === drawn[index])) return;
            drawn = wanted;
            [...box.children].forEach((button, head) =>
                drawHead(button.firstChild, weightsOf(head), layer.count, isDark()),
            );
        },
    };
}
