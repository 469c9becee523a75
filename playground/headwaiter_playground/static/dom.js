// Builds nodes of the page. Texts become text nodes only, so that no text of a user or a server is read as HTML.
import { onTheme } from "./theme.js";

const SVG = "http://www.w3.org/2000/svg";

/** Say whether an element waits for a reply. */
export function isBusy(id, busy) {
    byId(id).setAttribute("aria-busy", String(busy));
}

/** Return an element with attributes and children; children are nodes or texts. */
export function element(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
}

/** Return an SVG element with attributes and children. */
export function svg(tag, attributes = {}, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Return the element with an id. */
export function byId(id) {
    return document.getElementById(id);
}

/** Show a text in an element, or hide the element if the text is empty. */
export function say(target, text) {
    // A screen reader speaks an error anew whenever its text is set, also if the text stays the same.
    if (target.textContent !== text) target.textContent = text;
    target.hidden = !text;
}

/**
 * Return a table. `head` has the texts of the columns; each row has texts or nodes, the first of which is its header.
 * Columns after the first `words` columns hold numbers.
 */
export function table(caption, head, rows, words = 1) {
    const kind = (index) => (index < words ? {} : { class: "number" });
    return element(
        "table",
        {},
        element("caption", {}, element("span", {}, caption)),
        element(
            "thead",
            {},
            element("tr", {}, ...head.map((text, index) => element("th", { scope: "col", ...kind(index) }, text))),
        ),
        element(
            "tbody",
            {},
            ...rows.map((row) =>
                element(
                    "tr",
                    {},
                    ...row.map((cell, index) =>
                        index ? element("td", kind(index), cell) : element("th", { scope: "row" }, cell),
                    ),
                ),
            ),
        ),
    );
}

/** Show a table in a box, with a hint if the box must be scrolled to see all rows. */
export function showTable(box, shown) {
    box.replaceChildren(shown);
    if (box.scrollHeight > box.clientHeight + 1)
        shown.caption.firstChild.append(` Scroll to see all ${shown.tBodies[0].rows.length} rows.`);
}

/** Return a legend: the names of series beside their colours. */
export function legend(series) {
    return series.map(({ name, mark }) =>
        element("span", { class: "key" }, element("i", { class: `swatch ${mark}` }), name),
    );
}

/**
 * Return a function that calls `draw` in the next frame of the screen, once for all its calls until then. While `panel`
 * is not shown, the drawing waits until it is. `draw` is also called when the panel's width changes, and the theme.
 */
export function drawing(panel, draw) {
    let width = 0; // The width that the drawing has; 0 before the first one, and while a new one is due.
    let isDue = false;

    function redraw() {
        width = 0;
        if (isDue) return;
        isDue = true;
        requestAnimationFrame(() => {
            isDue = false;
            if (!panel.clientWidth) return;
            width = panel.clientWidth;
            draw();
        });
    }

    // A panel that is shown again gets its width back, which the observer sees.
    new ResizeObserver(() => panel.clientWidth && panel.clientWidth !== width && redraw()).observe(panel);
    onTheme(redraw);
    return redraw;
}

/** Offer the numbers below `count`, and choose one if it is among them: by default the one that is chosen. */
export function setOptions(choice, count, nameOf, wanted = Number(choice.value)) {
    const chosen = wanted < count ? wanted : 0;
    choice.replaceChildren(
        ...Array.from({ length: count }, (_, index) => element("option", { value: index }, nameOf(index))),
    );
    choice.value = String(chosen);
}

/** Offer a blob to the user as a file. */
export function download(blob, name) {
    const url = URL.createObjectURL(blob);
    element("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
        if (value !== false && value !== undefined) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children);
    return node;
}
