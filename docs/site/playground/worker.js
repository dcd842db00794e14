// A worker by docs/protocol.md. Its database is in the same tab, so no answer is ever missing, and
// there is no process that a job could end alone: of the protocol's rules those two are left out.
import { literal } from "./sql.js";

const LIMIT = 3; // handlers at once

export class TabWorker {
  /** handlers: functions (payload, job, signal) by task. told: called with what the worker did. */
  constructor(database, handlers, told) {
    Object.assign(this, { database, handlers, told, held: new Map(), ended: [], asked: 0 });
    this.automatic = false;
    database.onNotified((payload) => (payload === "cancel" ? this.beatSoon?.() : this.wake?.()));
  }

  async open() {
    const info = { name: "this tab", task_identifiers: Object.keys(this.handlers) };
    const sql = `select pyworker.open_worker(${literal(info)}, protocol := 1) as told`;
    const told = JSON.parse((await this.database.rows(sql))[0].told);
    this.id = told.worker;
    this.stopAfter = told.stop_after_s * 1000;
    this.answered = performance.now();
    this.told(`worker ${this.id} opened`);
  }

  async start() {
    await this.open();
    this.#loop("beatSoon", () => this.#beat());
    this.#loop("wake", () => this.#turn());
  }

  /** Claims by itself from now on, or no more. Handlers that run go on. */
  setAutomatic(automatic) {
    this.automatic = automatic;
    this.wake?.();
  }

  /** Claims one job more, which then waits for settle(). */
  claimOne() {
    this.asked += 1;
    this.wake?.();
  }

  /** Ends the handler of a job: its outcome is `done`, or `fail` with an error, or `snooze` … */
  settle(id, outcome) {
    this.held.get(id)?.settle(outcome);
  }

  async #loop(name, once) {
    for (;;) {
      let seconds = 1;
      const woken = new Promise((resolve) => (this[name] = resolve));
      try {
        seconds = await once();
      } catch (problem) {
        this.told(problem.message);
        if (problem.code === "PW004") await this.#reopen();
      }
      let timer;
      await Promise.race([woken, new Promise((resolve) => (timer = setTimeout(resolve, seconds * 1000)))]);
      clearTimeout(timer);
    }
  }

  async #reopen() {
    for (const { controller } of this.held.values()) controller.abort("lost");
    this.held.clear();
    this.ended = [];
    await this.open();
  }

  async #turn() {
    const room = Math.max(0, this.automatic ? LIMIT - this.held.size : this.asked);
    if (!room && !this.ended.length) return 2.5;
    this.asked = 0; // before the call: who asks during it asks for the next one
    const reports = this.ended.splice(0);
    const done = reports.filter((report) => report.do === "done");
    const others = reports.filter((report) => report.do !== "done");
    const lists = [done.map((report) => report.id), done.map((report) => report.run)];
    const tasks = literal(Object.keys(this.handlers));
    const sql = `select * from pyworker.work(${this.id}, ${literal(lists[0])}, ${literal(lists[1])}, null,
      ${literal(JSON.stringify(others))}, ${room}, ${tasks})`;
    let rows;
    try {
      rows = await this.database.rows(sql);
    } catch (problem) {
      if (problem.code !== "PW004") this.ended.unshift(...reports); // nothing of the call counted
      throw problem;
    }
    const turn = rows.pop();
    for (const report of reports) this.told(`reported: ${report.do}`, report.id);
    for (const row of rows) {
      if (row.kind === "job") this.#begin(row);
      else if (row.why !== "stale") this.told(`refused: ${row.why}`, Number(row.id));
    }
    return Number(turn.again_in_s);
  }

  async #begin(row) {
    const job = { ...row, id: Number(row.id), run: Number(row.run), attempts: Number(row.attempts) };
    job.payload = JSON.parse(row.payload);
    const controller = new AbortController();
    let settle;
    const settled = new Promise((resolve) => (settle = resolve));
    this.held.set(job.id, { job, controller, settle });
    if (job.delivery === "at_most_once") {
      const started = await this.database.rows(`select pyworker.start_job(${job.id}, ${job.run}) as yes`);
      if (started[0].yes !== "t") return this.#report(job, controller, { do: "release" });
    }
    this.told(`began attempt ${job.attempts} of ${job.max_attempts}`, job.id);
    const limit = row.timeout_s && setTimeout(() => settle(failed(`timed out after ${row.timeout_s} s`)),
      row.timeout_s * 1000);
    controller.signal.addEventListener("abort", () => settle(failed("stopped")));
    const ways = this.automatic ? [settled, this.#handle(job, controller.signal)] : [settled];
    const outcome = await Promise.race(ways);
    clearTimeout(limit);
    this.#report(job, controller, outcome);
  }

  async #handle(job, signal) {
    try {
      await this.handlers[job.task_identifier](job.payload, job, signal);
      return { do: "done" };
    } catch (problem) {
      return failed(String(problem));
    }
  }

  #report(job, controller, outcome) {
    if (controller.signal.reason === "lost") return; // another worker has it
    this.held.delete(job.id);
    this.ended.push({ id: job.id, run: job.run, ...outcome });
    this.wake?.();
  }

  async #beat() {
    const sent = performance.now();
    if (sent - this.answered > this.stopAfter) { // the browser let this tab sleep
      await this.database.rows(`select pyworker.close_worker(${this.id})`);
      await this.#reopen();
    }
    const jobs = [...[...this.held.values()].map((one) => one.job), ...this.ended];
    const [ids, runs] = [jobs.map((job) => job.id), jobs.map((job) => job.run)];
    const [alive, ...stops] = await this.database.rows(
      `select * from pyworker.beat(${this.id}, ${literal(ids)}, ${literal(runs)})`);
    if (alive.kind === "dead") {
      await this.#reopen();
      return 0;
    }
    this.answered = sent;
    for (const { id, run, why } of stops) this.#stop(Number(id), Number(run), why);
    if (alive.why?.split(/\W+/).includes("maintain")) await this.database.rows("select pyworker.maintain()");
    return Number(alive.next_in_s);
  }

  #stop(id, run, why) {
    const held = this.held.get(id);
    if (held?.job.run !== run) return; // reported meanwhile
    if (why === "lost") this.held.delete(id);
    held.controller.abort(why);
  }
}

const failed = (error) => ({ do: "fail", error });
