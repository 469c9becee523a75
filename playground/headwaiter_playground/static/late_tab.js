// Tabs whose panels, style and script come when one of them is first shown.
import { byId, element } from "./dom.js";

/** Return a tab that is as the tab of `load`, which returns a promise of it; `failed` gets the error if it does not come. */
export function lateTab(load, failed) {
    let tab = null;
    let isShown = false;
    let model = null;
    let linked = null; // The state of an address that the tab has not yet shown.

    return {
        useModel(description, state) {
            model = description;
            linked = state ?? linked;
            tab?.useModel(description, state);
        },
        async shown() {
            isShown = true;
            const loaded = tab ?? (await load().catch(failed));
            if (!loaded) return;
            if (!tab) loaded.useModel(model, linked);
            tab = loaded;
            if (isShown) tab.shown();
        },
        left() {
            isShown = false;
            tab?.left();
        },
        state: () => (tab ? tab.state?.() : linked),
        useState(state) {
            linked = state;
            tab?.useState?.(state);
        },
    };
}

/** Add the style of `NAME.css` to the page, and the panels of `NAME.html`. */
export async function addPanels(name) {
    const style = element("link", { rel: "stylesheet", href: `${name}.css` });
    const styled = new Promise((done, failed) => Object.assign(style, { onload: done, onerror: () => failed(new Error(name)) }));
    document.head.append(style);
    const response = await fetch(`${name}.html`);
    const panels = new DOMParser().parseFromString(await response.text(), "text/html").querySelectorAll("[data-panel]");
    await styled;
    for (const panel of panels) byId(panel.dataset.panel).replaceChildren(...panel.childNodes);
}
