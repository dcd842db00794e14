// Buttons at the code of a page: each block can be copied, and SQL can be run, in a PostgreSQL that
// loads when the first of these buttons is pressed. A plain script, so that it works from a file.
"use strict";
(() => {
  const here = document.currentScript;
  const playground = here.dataset.playground === "yes" && new URL("playground/", here.src);
  const served = location.protocol !== "file:";
  // Modules are not loaded from files. These numbers stand for runs, which a page cannot know.
  const runnable = playground && served && !/\b1764\d{12}\b/.test(document.body.textContent);

  function make(tag, className, text) {
    return Object.assign(document.createElement(tag), { className, textContent: text ?? "" });
  }

  function button(text, label, action) {
    const made = make("button", "code-button", text);
    made.type = "button";
    made.setAttribute("aria-label", label);
    made.onclick = () => action(made);
    return made;
  }

  /** What a reader would type: of a console its commands without the prompts, else everything. */
  function typed(pre) {
    const text = pre.textContent.trimEnd();
    const commands = text.split("\n").filter((line) => line.startsWith("$ "));
    return commands.length ? commands.map((line) => line.slice(2)).join("\n") : text;
  }

  async function copy(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = document.body.appendChild(Object.assign(make("textarea", ""), { value: text }));
    area.select(); // a page without https has no clipboard
    document.execCommand("copy");
    area.remove();
  }

  function said(at, text) {
    const before = at.textContent;
    at.textContent = text;
    setTimeout(() => (at.textContent = before), 1500);
  }

  /** The comment above a block, which the page's source has for it. */
  function remark(block) {
    let node = block.previousSibling;
    while (node && node.nodeType === Node.TEXT_NODE && !node.data.trim()) node = node.previousSibling;
    return node?.nodeType === Node.COMMENT_NODE ? node.data.trim() : "";
  }

  // What the theme leaves out, for screen readers and the keyboard.
  for (const heading of document.querySelectorAll("[role=heading]:not([aria-level])")) heading.ariaLevel = 2;
  for (const wide of document.querySelectorAll(".highlight-text pre, .table-wrapper")) wide.tabIndex = 0;

  const blocks = [];
  for (const pre of document.querySelectorAll("article div.highlight > pre")) {
    const block = pre.closest("[class*=highlight-]");
    const bar = make("div", "code-bar");
    if (!block.classList.contains("highlight-text")) {
      bar.append(button("Copy", "Copy this code", async (at) => {
        await copy(typed(pre));
        said(at, "Copied");
      }));
    }
    if (runnable && block.classList.contains("highlight-sql") && !remark(block).startsWith("not run")) {
      const out = make("div", "code-out");
      out.setAttribute("aria-live", "polite");
      const one = { sql: pre.textContent };
      one.show = (answer) => out.replaceChildren(answer);
      blocks.push(one);
      const run = button("Run", "Run this SQL in a PostgreSQL in this tab", async (at) => {
        at.disabled = true;
        at.textContent = "Running …";
        try {
          const guides = await import(new URL("guides.js", playground));
          await guides.runUpTo(blocks, one);
        } catch (problem) {
          out.replaceChildren(make("pre", "pg-error", `PostgreSQL did not start: ${problem.message}`));
        }
        at.disabled = false;
        at.textContent = "Run";
      });
      run.classList.add("code-run");
      bar.prepend(run);
      block.after(out);
    }
    if (bar.children.length) block.prepend(bar);
  }

  const root = document.getElementById("pg");
  if (!root) return;
  const begin = root.querySelector("button");
  const state = root.querySelector("[role=status]");
  if (!playground || !served) {
    begin.disabled = true;
    state.textContent = served ? "This copy of the site was built without the playground."
      : "A browser starts it only from a server: python -m http.server, in the directory of the site.";
  }
  begin.onclick = async () => {
    begin.disabled = true;
    state.textContent = "PostgreSQL starts, and pyworker is installed …";
    try {
      const { start } = await import(new URL("playground.js", playground));
      await start(root);
      root.dataset.ready = "yes";
    } catch (problem) {
      state.textContent = `It did not start: ${problem.message}`;
      begin.disabled = false;
    }
  };
})();
