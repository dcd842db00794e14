// The pages work without this script. It only ticks all boxes of a list at once.
addEventListener("change", (event) => {
  if (event.target.matches("[data-all]"))
    for (const box of event.target.closest("form").querySelectorAll("input[name=target]")) box.checked = event.target.checked;
});
