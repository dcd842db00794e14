// The playground: forms that call the queue's SQL functions, a worker, and the picture of the jobs.
import { openDatabase } from "./database.js";
import { answer, button, element, say } from "./parts.js";
import { Picture } from "./picture.js";
import { literal } from "./sql.js";
import { TabWorker } from "./worker.js";

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const TASKS = {
  send_email: {
    words: "succeeds",
    async run() {
      await pause(1.5);
    },
  },
  call_api: {
    words: "fails twice, then succeeds",
    async run(_payload, job) {
      await pause(1.5);
      if (job.attempts < 3) throw new Error("503 Service Unavailable");
    },
  },
  broken: {
    words: "fails each time",
    async run() {
      await pause(1);
      throw new TypeError("to is not a function");
    },
  },
};
const SETUP = `
select pyworker.define_task('call_api', max_attempts := 5, backoff := '["4 s", "6 s"]');
select pyworker.define_task('broken', max_attempts := 3, backoff := '["4 s"]');
select pyworker.set_queue('mail', 2);`;
const JOBS = `
select id, task_identifier as task, queue_name as queue, state, attempts, max_attempts, run_at, last_error,
  reason, key from pyworker.jobs
union all
select id, task_identifier, queue_name, state, attempts, max_attempts, run_at, last_error, reason, key
from pyworker.history order by id`;

export async function start(root) {
  const database = await openDatabase();
  await database.run(SETUP);
  const playground = new Playground(root, database);
  await playground.worker.start();
  await playground.look();
  return playground;
}

class Playground {
  constructor(root, database) {
    this.database = database;
    this.selected = null;
    const handlers = Object.fromEntries(Object.entries(TASKS).map(([name, task]) => [name, task.run]));
    this.worker = new TabWorker(database, handlers, (what, job) => this.#told(what, job));
    this.picture = new Picture((id) => this.choose(id));
    this.log = element("ol", { className: "pg-log", "aria-label": "what happened" });
    this.job = element("div", { className: "pg-job" });
    this.queues = element("div", { className: "pg-queues" });
    this.out = element("div", { className: "pg-out", "aria-live": "polite" });
    root.replaceChildren(this.#adding(), this.#working(), this.picture.root,
      element("div", { className: "pg-columns" },
        element("section", { className: "pg-panel" }, element("h3", {}, "The job"), this.job),
        element("section", { className: "pg-panel" }, element("h3", {}, "What happened"), this.log)),
      this.#console());
    database.onNotified(() => this.look());
    setInterval(() => document.hidden || this.look(), 400);
  }

  #adding() {
    const field = (label, control) => element("label", {}, element("span", {}, label), control);
    const task = element("select", {}, ...Object.entries(TASKS).map(([name, { words }]) =>
      element("option", { value: name }, `${name} (${words})`)));
    const payload = element("input", { value: '{"to": "ada@example.org"}', spellcheck: false });
    const queue = element("select", {},
      element("option", { value: "" }, "none"), element("option", {}, "mail"));
    const delay = element("input", { type: "number", min: 0, value: 0 });
    const key = element("input", { placeholder: "none", spellcheck: false });
    const sql = () => {
      const named = [];
      if (queue.value) named.push(`queue_name := ${literal(queue.value)}`);
      const wait = Number(delay.value);
      if (wait) named.push(`run_at := pyworker.clock() + ${literal(`${wait} s`)}`);
      if (key.value) named.push(`job_key := ${literal(key.value)}`);
      const values = [literal(task.value), literal(payload.value), ...named];
      return `select id, state from pyworker.add_job(${values.join(", ")})`;
    };
    const form = element("form", { className: "pg-panel pg-add" },
      field("task", task), field("payload", payload), field("queue", queue), field("in seconds", delay),
      field("key", key), element("button", { className: "pg-main" }, "Add a job"),
      button("Add 10", () => this.act(Array(10).fill(sql()).join(";\n"), `10 times ${sql()}`)));
    form.onsubmit = async (event) => {
      event.preventDefault();
      const { results, error } = await this.act(sql());
      if (!error) this.choose(results.at(-1).rows[0][0]);
    };
    return form;
  }

  #working() {
    this.toggle = button("Start the worker", () => {
      this.worker.setAutomatic(!this.worker.automatic);
      say(this.toggle, this.worker.automatic ? "Stop the worker" : "Start the worker");
    }, "pg-main");
    const later = (text) => button(`${text} later`, async () => {
      await this.act(`select pyworker.advance_clock('${text}')`);
      this.worker.beatSoon?.();
    });
    return element("div", { className: "pg-panel pg-bar" }, this.toggle,
      button("Claim one job", () => this.worker.claimOne()), later("1 minute"), this.queues);
  }

  #console() {
    const text = element("textarea", { rows: 4, spellcheck: false, "aria-label": "SQL",
      value: "select check_name, severity, finding\nfrom pyworker.doctor();" });
    const run = async () => {
      this.out.replaceChildren(answer(await this.database.run(text.value)));
      this.look();
    };
    text.onkeydown = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && run();
    return element("section", { className: "pg-panel" }, element("h3", {}, "Any SQL"), text,
      element("div", { className: "pg-bar" }, button("Run", run, "pg-main"),
        element("small", {}, "or Ctrl+Enter. The database lives until you leave this page.")), this.out);
  }

  /** Runs what a button stands for, and shows its SQL with the last row of its answer. */
  async act(sql, shown = sql) {
    const { results, error } = await this.database.run(sql);
    const row = error ? null : results.at(-1)?.rows.at(-1)?.filter(Boolean).join(", ");
    const said = row ? element("span", { className: "pg-said" }, row) : "";
    this.#note(element("span", {}, element("code", {}, `${shown};`), " ", said), "you", error?.message);
    await this.look();
    return { results, error };
  }

  #told(what, job) {
    this.#note(element("span", {}, job ? `worker: job ${job}: ${what}` : `worker: ${what}`), "worker");
    this.look();
  }

  #note(content, who, problem) {
    const line = element("li", { className: `pg-by-${who}` }, content);
    if (problem) line.append(element("em", { role: "alert" }, ` ${problem}`));
    this.log.prepend(line);
    while (this.log.children.length > 30) this.log.lastChild.remove();
  }

  choose(id) {
    this.selected = id;
    this.shown = null;
    return this.look();
  }

  /** Reads the queue, and draws what has changed. One look at a time; who asks meanwhile gets one more. */
  async look() {
    this.again = Boolean(this.looking);
    this.looking ??= this.#look().finally(() => {
      this.looking = null;
      if (this.again) this.look();
    });
    return this.looking;
  }

  async #look() {
    const explain = this.selected ? `select * from pyworker.explain_job(${this.selected})` : "select 1";
    const jobs = await this.database.rows(JOBS);
    const queues = await this.database.rows("select queue_name, paused from pyworker.list_queues()");
    const job = jobs.find((one) => one.id === this.selected);
    const reasons = job ? (await this.database.run(explain)).results.at(-1) : null;
    const seen = JSON.stringify([jobs, queues, this.selected]);
    if (seen !== this.seen) {
      this.seen = seen;
      this.picture.draw(jobs, this.selected);
      this.#drawQueues(queues);
    }
    const shown = JSON.stringify([job, reasons, this.worker.held.has(Number(job?.id))]);
    if (shown !== this.shown) this.#drawJob(job, reasons);
    this.shown = shown;
  }

  #drawQueues(queues) {
    this.queues.replaceChildren(...queues.map(({ queue_name: name, paused }) => {
      const verb = paused === "t" ? "resume" : "pause";
      return button(`${verb[0].toUpperCase()}${verb.slice(1)} queue ${name}`,
        () => this.act(`select pyworker.${verb}_queue(${literal(name)})`));
    }));
  }

  #drawJob(job, reasons) {
    if (!job) {
      this.job.replaceChildren(element("p", { className: "pg-quiet" },
        "Add a job, then choose one in the picture: here stands why it is not running."));
      return;
    }
    const facts = [`job ${job.id}`, job.task, job.state, `attempt ${job.attempts} of ${job.max_attempts}`];
    if (job.queue) facts.push(`queue ${job.queue}`);
    if (job.key) facts.push(`key ${job.key}`);
    const words = (reasons?.rows ?? []).map(([, reason, detail, remedy]) => element("li", {},
      element("b", {}, reason), detail ? `: ${detail}` : "",
      remedy ? element("div", {}, element("code", {}, remedy)) : ""));
    this.job.replaceChildren(element("p", {}, facts.join(" · ")),
      element("p", { className: "pg-quiet" }, `explain_job(${job.id}) says:`),
      element("ul", { className: "pg-why" }, ...words),
      ...(job.last_error ? [element("pre", { className: "pg-error" }, job.last_error)] : []),
      element("div", { className: "pg-bar" }, ...this.#actions(job)));
  }

  #actions(job) {
    const id = Number(job.id);
    const call = (verb) => button(verb[0].toUpperCase() + verb.slice(1),
      () => this.act(`select state from pyworker.${verb}_job(${id})`));
    if (job.state !== "running") {
      const ended = ["completed", "cancelled"].includes(job.state);
      const verbs = ended || job.state === "discarded" ? ["retry"] : ["retry", "cancel"];
      return [...verbs, "delete"].map(call);
    }
    if (!this.worker.held.has(id)) return [call("cancel")];
    return [button("Complete", () => this.worker.settle(id, { do: "done" }), "pg-main"),
      button("Fail", () => this.worker.settle(id, { do: "fail", error: "you pressed Fail" })),
      button("Snooze 10 s", () => this.worker.settle(id, { do: "snooze", delay_s: 10 })), call("cancel")];
  }
}
