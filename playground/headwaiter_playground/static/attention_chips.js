// The tokens of a text as buttons in a toolbar: one stop of the Tab key, arrow keys move between tokens.
import { weightShare } from "./colours.js";
import { element } from "./dom.js";
import { colouredBy } from "./heat_maps.js";
import { fixed } from "./numbers.js";
import { isDark } from "./theme.js";
import { toolbar } from "./toolbar.js";

/**
/**
 * Return an object that shows tokens in a toolbar. It calls `choose` with the position of a token; if given, `cross` with
 * that of a token on which the user types an x, and `preview` with that of a token under the mouse, or null.
 */
export function chipBar(bar, choose, cross = null, preview = () => {}) {
    let buttons = [];

    toolbar(bar, () => buttons, choose);
    bar.addEventListener("keydown", (event) => {
        const now = buttons.indexOf(document.activeElement);
        if (now >= 0 && event.key === "x" && cross && !event.ctrlKey && !event.metaKey) cross(now);
    });
    bar.addEventListener("mouseleave", () => preview(null));

    function make(tokens) {
        buttons = tokens.map((token, position) => {
            const button = element(
                "button",
                { type: "button", class: "chip" },
                element("bdi", {}, token),
                element("span", { class: "for-readers" }),
                element("small", {}),
            );
            button.addEventListener("click", () => choose(position));
            button.addEventListener("mouseenter", () => preview(position));
            return button;
        });
        bar.replaceChildren(...buttons);
    }

    return {
        /**
         * Show tokens with the weights that the chosen token, at `query`, gives them; some are crossed out. `query` is -1
         * if the chosen token is elsewhere.
         */
        show(tokens, weights, query, decimals, crossedOut = new Set()) {
            const texts = buttons.map((button) => button.firstChild.textContent);
            if (JSON.stringify(texts) !== JSON.stringify(tokens)) make(tokens);
            buttons.forEach((button, position) => {
                button.lastChild.textContent = fixed(weights[position], decimals);
                button.setAttribute("aria-pressed", String(position === query));
                button.classList.toggle("crossed-out", crossedOut.has(position));
                button.children[1].textContent =
                    `, position ${position}${crossedOut.has(position) ? ", crossed out" : ""}, weight `;
                button.tabIndex = position === Math.max(query, 0) ? 0 : -1;
            });
            if (query < 0) return;
            // Only the box scrolls: the user may look at another part of the page.
            const [box, chosen] = [bar, buttons[query]].map((each) => each.getBoundingClientRect());
            if (chosen.top < box.top) bar.scrollTop -= Math.ceil(box.top - chosen.top);
            if (chosen.bottom > box.bottom) bar.scrollTop += Math.ceil(chosen.bottom - box.bottom);
        },
        /** Colour the tokens by their weights. */
        paint(weights) {
            buttons.forEach((button, position) => colouredBy(button, weightShare(weights[position]), isDark()));
        },
    };
}
