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
        const offered = tabs.filter((tab) => !tab.hidden);
        const now = offered.indexOf(document.activeElement);
        const next =
            event.key === "Home"
                ? 0
                : event.key === "End"
                  ? offered.length - 1
                  : step[event.key] && (now + step[event.key] + offered.length) % offered.length;
        if (now < 0 || next === undefined) return;
        event.preventDefault();
        offered[next].focus();
        show(offered[next]);
    });
    for (const tab of tabs) tab.addEventListener("click", () => show(tab));
    return {
        /** The name of the tab that is shown. */
        get shown() {
            return shown;
        },
        /** Show a tab, or the first one if there is none of this name. */
        show(name) {
            const wanted = tabs.find((tab) => nameOf(tab) === name) ?? tabs[0];
            if (nameOf(wanted) !== shown) show(wanted);
        },
        /** Offer the tabs with some names; if the shown tab is not among them, show the first of them. */
        offer(names) {
            for (const tab of tabs) tab.hidden = !names.includes(nameOf(tab));
            if (!names.includes(shown)) show(tabs.find((tab) => !tab.hidden));
        },
    };
}
