// The sections as a drawer over the page, where the window is narrow. The focus stays inside until it is closed.

const side = document.getElementById("side");
const menu = document.getElementById("menu");
const others = [document.querySelector(".bar"), document.querySelector(".stage")];
const AS_DIALOG = { role: "dialog", "aria-modal": "true", "aria-label": "Sections" };
const narrow = matchMedia("(max-width: 900px)");

export const isOpen = () => side.classList.contains("open");

/** Open or close it. `back`: the button that opened it has the focus again. */
export function slide(isWanted, { back = false } = {}) {
  const wasOpen = isOpen();
  side.classList.toggle("open", isWanted);
  document.getElementById("shade").hidden = !isWanted;
  menu.setAttribute("aria-expanded", String(isWanted));
  for (const one of others) one.inert = isWanted;
  if (isWanted) {
    for (const [name, value] of Object.entries(AS_DIALOG)) side.setAttribute(name, value);
    (side.querySelector("[aria-current]") ?? side.querySelector("#nav a")).focus();
  } else {
    for (const name of Object.keys(AS_DIALOG)) side.removeAttribute(name);
    if (wasOpen && back) menu.focus();
  }
}

/** Tab goes around inside: the rest of the page is inert, and the browser's own bar is left with Escape. */
function around(event) {
  if (event.key !== "Tab" || !isOpen()) return;
  const all = [...side.querySelectorAll("a, button")].filter((one) => one.offsetParent !== null);
  const [first, last] = [all[0], all.at(-1)];
  if (event.shiftKey ? document.activeElement !== first : document.activeElement !== last) return;
  event.preventDefault();
  (event.shiftKey ? last : first).focus();
}

side.addEventListener("keydown", around);
menu.addEventListener("click", () => slide(true));
document.getElementById("shut").addEventListener("click", () => slide(false, { back: true }));
document.getElementById("shade").addEventListener("click", () => slide(false, { back: true }));
narrow.addEventListener("change", () => { if (isOpen()) slide(false); });
