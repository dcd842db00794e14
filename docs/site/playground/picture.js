// The picture: a box for each state, a chip for each job, which moves when its job's state changes.
import { element, say } from "./parts.js";

export const STATES = {
  scheduled: "until its time",
  retryable: "until its next attempt",
  pending: "until others have ended",
  available: "ready to run",
  running: "with a worker",
  completed: "done",
  cancelled: "given up",
  discarded: "failed for good",
};
const SHOWN = 24; // chips in a box

export class Picture {
  constructor(chosen) {
    this.chosen = chosen;
    this.chips = new Map();
    this.boxes = new Map(Object.entries(STATES).map(([state, words]) => [state, this.#box(state, words)]));
    const said = { className: "pg-picture", role: "group", "aria-label": "jobs by their state" };
    this.root = element("div", said,
      ...[...this.boxes.values()].map((box) => box.root));
  }

  #box(state, words) {
    const [count, chips] = [element("b", {}, "0"), element("div", { className: "pg-chips" })];
    const more = element("span", { className: "pg-more" });
    const head = element("header", {}, element("span", {}, state), count);
    const root = element("section", { className: `pg-box pg-${state}`, title: words }, head,
      element("small", {}, words), chips, more);
    return { root, count, chips, more };
  }

  /** jobs: rows with id, task, queue and state, the oldest first. */
  draw(jobs, selected) {
    const before = new Map([...this.chips].map(([id, chip]) => [id, chip.getBoundingClientRect()]));
    const gone = new Set(this.chips.keys());
    for (const [state, box] of this.boxes) {
      const here = jobs.filter((job) => job.state === state);
      const ended = ["completed", "cancelled", "discarded"].includes(state);
      const shown = ended ? here.slice(-SHOWN) : here.slice(0, SHOWN); // the newest of those that ended
      for (const job of shown) {
        gone.delete(job.id);
        this.#place(job, box.chips, job.id === selected);
      }
      say(box.count, String(here.length));
      say(box.more, here.length > SHOWN ? `and ${here.length - SHOWN} more` : "");
    }
    for (const id of gone) {
      this.chips.get(id).remove();
      this.chips.delete(id);
    }
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) this.#move(before);
  }

  #place(job, box, selected) {
    let chip = this.chips.get(job.id);
    if (!chip) {
      chip = element("button", { type: "button", className: "pg-chip", onclick: () => this.chosen(job.id) });
      this.chips.set(job.id, chip);
    }
    say(chip, `${job.id} ${job.task}`);
    chip.dataset.job = job.id;
    chip.setAttribute("aria-pressed", String(selected));
    if (chip.parentElement !== box) box.append(chip);
  }

  #move(before) {
    for (const [id, chip] of this.chips) {
      const [from, to] = [before.get(id), chip.getBoundingClientRect()];
      const [x, y] = from ? [from.left - to.left, from.top - to.top] : [0, -12];
      if (!x && !y) continue;
      chip.animate([{ transform: `translate(${x}px, ${y}px)`, opacity: from ? 1 : 0 }, { opacity: 1 }],
        { duration: 450, easing: "ease-in-out" });
    }
  }
}
