// The pages work without this script. It keeps them fresh, and adds keys and small comforts.
"use strict";
const all = (query, within = document) => [...within.querySelectorAll(query)];
const boxes = () => all("input[name=target]");

// -- Selection: all of a page at once, and how many.
const count = () => {
  const chosen = document.getElementById("chosen");
  if (!chosen) return;
  const number = boxes().filter((box) => box.checked).length;
  chosen.textContent = number ? `${number} selected` : "Selected jobs";
};
addEventListener("change", (event) => {
  if (event.target.matches("[data-all]")) for (const box of boxes()) box.checked = event.target.checked;
  count();
});

// -- Copying: only where the browser lets a page write to the clipboard.
const offerCopies = () => {
  if (navigator.clipboard) for (const button of all("[data-copy]")) button.hidden = false;
};
addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.parentElement.querySelector("pre").textContent);
  button.textContent = "Copied";
});

// -- Fresh figures: the page is asked for again, and what differs in its live parts is changed in place.
const morph = (old, now) => {
  if (old.isEqualNode(now)) return;
  if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName || old.id !== now.id) {
    old.replaceWith(now);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.data = now.data;
    return;
  }
  if (old.nodeName === "DETAILS") now.open = old.open;
  if (old.hasAttribute("data-copy")) return;
  for (const { name } of [...old.attributes])
    if (!now.hasAttribute(name) && name !== "tabindex") old.removeAttribute(name);
  for (const { name, value } of now.attributes)
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  let place = old.firstChild;
  for (const child of [...now.childNodes]) {
    const same = child.id ? [...old.children].find((one) => one.id === child.id) : place?.id ? null : place;
    if (!same) {
      old.insertBefore(child, place);
      continue;
    }
    if (same !== place) old.insertBefore(same, place);
    place = same.nextSibling;
    morph(same, child);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
};
const busy = (part) => part.querySelector("input[name=target]:checked, input:focus, select:focus");
const refresh = async () => {
  if (document.hidden) return;
  const stale = document.getElementById("stale");
  try {
    const answer = await fetch(location.href, { headers: { "X-Refresh": "1" } });
    if (!answer.ok) throw new Error(answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of all("[data-live]")) {
      const now = fresh.getElementById(part.id);
      if (now && !busy(part)) morph(part, now);
    }
    stale.textContent = "";
    offerCopies();
  } catch {
    stale.textContent = "This page is not up to date: the dashboard does not answer.";
  }
};
const every = Number(document.body.dataset.every);
if (every) setInterval(refresh, every * 1000);

// -- Keys.
const rows = () => all("table.jobs tbody tr").filter((row) => row.querySelector("a"));
const move = (step) => {
  const list = rows(), at = list.findIndex((row) => row.contains(document.activeElement));
  list[Math.min(Math.max(at + step, 0), list.length - 1)]?.querySelector("td.id a").focus();
};
const retry = (row) => {
  const form = document.querySelector(".listing");
  if (form && row && !boxes().some((box) => box.checked))
    row.querySelector("input[name=target]").checked = true;
  if (!form || boxes().some((box) => box.checked)) document.querySelector("[data-do=retry]")?.click();
};
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input:not([type=checkbox]), select, textarea")) return;
  const row = rows().find((one) => one.contains(document.activeElement));
  const acts = {
    "/": () => document.querySelector("input[name=search]")?.select(),
    j: () => move(1),
    k: () => move(-1),
    x: () => row?.querySelector("input[name=target]")?.click(),
    r: () => retry(row),
  };
  if (!acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
});

offerCopies();
document.querySelector("form[data-go]")?.requestSubmit();
