// Tabs as the ARIA Authoring Practices describe them: arrow keys, Home and End move between tabs.

/**
 * Make a list of tabs work, and return an object that shows a tab by its name, and offers some of the tabs. `onChange`
 * gets the name of the tab that is shown, and of the tab that was shown before.
 */
export function makeTabs(list, onChange) {
    const tabs = [...list.querySelectorAll("[role=tab]")];
    const nameOf = (tab) => tab.id.replace("tab-", "");
    const panelOf = (tab) => document.getElementById(tab.getAttribute("aria-controls"));
    let shown = "";
    let offered = tabs; // All, until `offer` says which: an address may open a tab before the model is known.

    function show(tab) {
        const before = shown;
        shown = nameOf(tab);
        for (const each of tabs) {
            each.setAttribute("aria-selected", String(each === tab));
            each.tabIndex = each === tab ? 0 : -1;
            panelOf(each).hidden = each !== tab;
        }
        if (before && list.scrollWidth > list.clientWidth) tab.scrollIntoView({ block: "nearest", inline: "center" });
        onChange(shown, before);
    }

    const step = { ArrowRight: 1, ArrowLeft: -1 };
    list.addEventListener("keydown", (event) => {
        const visible = tabs.filter((tab) => !tab.hidden);
        const now = visible.indexOf(document.activeElement);
        const next =
            event.key === "Home"
                ? 0
                : event.key === "End"
                  ? visible.length - 1
                  : step[event.key] && (now + step[event.key] + visible.length) % visible.length;
        if (now < 0 || next === undefined) return;
        event.preventDefault();
        visible[next].focus();
        show(visible[next]);
    });
    for (const tab of tabs) tab.addEventListener("click", () => show(tab));
    return {
        /** The name of the tab that is shown. */
        get shown() {
            return shown;
        },
        /** Show a tab, or the first one if no offered tab has this name. */
        show(name) {
            const wanted = offered.find((tab) => nameOf(tab) === name) ?? offered[0];
            if (nameOf(wanted) !== shown) show(wanted);
        },
        /** Offer the tabs with some names; if the shown tab is not among them, show the first of them. */
        offer(names) {
            offered = tabs.filter((tab) => names.includes(nameOf(tab)));
            for (const tab of tabs) tab.hidden = !offered.includes(tab);
            if (!names.includes(shown)) show(offered[0]);
        },
    };
}
