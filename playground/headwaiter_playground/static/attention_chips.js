// The tokens of a text as buttons in a toolbar: one stop of the Tab key, arrow keys move between tokens.
import { weightShare } from "./colours.js";
import { element } from "./dom.js";
import { colouredBy } from "./heat_maps.js";
import { fixed } from "./numbers.js";
import { isDark } from "./theme.js";

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** Return an object that shows tokens in a toolbar, and calls `choose` with the position of a token. */
export function chipBar(bar, choose) {
    let buttons = [];

    bar.addEventListener("keydown", (event) => {
        const now = buttons.indexOf(document.activeElement);
        const next = event.key === "Home" ? 0 : event.key === "End" ? buttons.length - 1 : now + STEPS[event.key];
        if (now < 0 || !buttons[next]) return;
        event.preventDefault();
        choose(next);
        buttons[next].focus();
    });

    function make(tokens) {
        buttons = tokens.map((token, position) => {
            const button = element(
                "button",
                { type: "button", class: "chip" },
                element("bdi", {}, token),
                element("span", { class: "for-readers" }, `, position ${position}, weight `),
                element("small", {}),
            );
            button.addEventListener("click", () => choose(position));
            return button;
        });
        bar.replaceChildren(...buttons);
    }

    return {
        /** Show tokens with the weights that the chosen token, at `query`, gives them. */
        show(tokens, weights, query, decimals) {
            const texts = buttons.map((button) => button.firstChild.textContent);
            if (JSON.stringify(texts) !== JSON.stringify(tokens)) make(tokens);
            buttons.forEach((button, position) => {
                button.lastChild.textContent = fixed(weights[position], decimals);
                button.setAttribute("aria-pressed", String(position === query));
                button.tabIndex = position === query ? 0 : -1;
            });
            // Only the box scrolls: the user may look at another part of the page.
            const [box, chosen] = [bar, buttons[query]].map((each) => each.getBoundingClientRect());
            if (chosen.top < box.top) bar.scrollTop -= box.top - chosen.top;
            if (chosen.bottom > box.bottom) bar.scrollTop += chosen.bottom - box.bottom;
        },
        /** Colour the tokens by their weights. */
        paint(weights) {
            buttons.forEach((button, position) => colouredBy(button, weightShare(weights[position]), isDark()));
        },
    };
}
