// Buttons that are one stop of the Tab key: arrow keys, Home and End move between them.

/**
 * Let the keys move between the buttons of a bar, and call `choose` with the position of the button they come to.
 * `buttons` returns the buttons, and `columns` how many positions the keys up and down move.
 */
export function toolbar(bar, buttons, choose, columns = () => 1) {
    bar.addEventListener("keydown", (event) => {
        const all = buttons();
        const now = all.indexOf(document.activeElement);
        const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(), ArrowUp: -columns() };
        const next = event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : now + steps[event.key];
        if (now < 0 || !all[next]) return;
        event.preventDefault();
        choose(next);
        all[next].focus();
    });
}
