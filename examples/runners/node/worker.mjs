// A runner by docs/protocol.md: new Runner({task: async (payload, job) => result}).run()
import { EventEmitter, once } from 'node:events'
import { uptime as now } from 'node:os' // goes on while the machine sleeps
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Job, Report } from './job.mjs'

const PREFETCH = 10 // jobs that wait here, besides those that run
const DOUBTS = [0, 1, 3, 7, 15, 31, 63, 127] // seconds: a call whose answer was lost may still commit
const CONNECTION = { connectionString: process.env.DATABASE_URL, connectionTimeoutMillis: 5000,
  keepAlive: true, keepAliveInitialDelayMillis: 5000 }
const SETTINGS = `set statement_timeout = '4s'; set tcp_user_timeout = 14000; set tcp_keepalives_idle = 8;
  set tcp_keepalives_interval = 2; set tcp_keepalives_count = 3`
const idsOf = jobs => [jobs.map(job => job.id), jobs.map(job => job.run)]
const log = (...words) => console.error(new Date().toISOString(), ...words)

export class Runner extends EventEmitter {
  constructor(handlers, { schema = 'pyworker', concurrency = 10, shutdown_s = 25 } = {}) {
    super()
    Object.assign(this, { handlers, concurrency, shutdown_s, schema: pg.escapeIdentifier(schema) })
    this.held = new Set() // all jobs that this worker has claimed and not reported
    this.running = this.workAt = 0 // handlers, also of jobs that are lost; when to claim again
    // For work, and for what handlers call: a transaction, and another call during it.
    this.pool = new pg.Pool({ ...CONNECTION, max: 2 * concurrency + 2 })
    this.pool.on('error', () => {}) // a connection that is lost fails its next query
    this.pool.on('connect', client => client.on('error', () => {}))
    this.former = [] // connections for beat that did not answer, and may have the worker's lock
  }

  // All calls: each is a transaction of its own.
  async rows(sql, values, on = this.pool) {
    const text = sql.replaceAll('pyworker.', `${this.schema}.`)
    return (await on.query({ text, values, query_timeout: on === this.pool ? 60000 : 6000 })).rows
  }

  async ask(call, ...values) {
    const [row] = await this.rows(`select pyworker.${call}`, values)
    return Object.values(row)[0]
  }

  // No beat was answered for so long that others may have our jobs.
  get isSilent() {
    return this.opened && now() > this.aliveAt + Math.min(this.opened.stop_after_s, 15)
  }

  // Works until stop() is called. Returns the exit code.
  async run() {
    const fence = setInterval(() => this.isSilent && this.dead('the database does not answer', 1), 200)
    const beats = this.repeat(500, () => this.closed, () => this.beats(), () => this.mistrust())
    const over = () => this.stopping && !this.held.size
    await this.repeat(5000, over, () => this.turn(), () => { this.doubts = DOUBTS.map(s => now() + s) })
    clearInterval(fence)
    this.closed = true
    this.emit('beat')
    await beats
    await this.rows('select pyworker.close_worker($1)', [this.last?.worker], this.ear).catch(() => {})
    await Promise.all([this.ear?.end(), this.pool.end()])
    return this.exitCode ?? 0
  }

  // Repeats a step until over(). After an error it waits, each time twice as long, `most` ms at most.
  async repeat(most, over, step, lost) {
    for (let failures = 0; !over(); ) {
      try {
        await step()
        failures = 0
      } catch (error) {
        const code = error instanceof pg.DatabaseError ? error.code : 'none'
        log(code, error.message)
        this.workAt = 0
        if (code === 'PW004') this.dead(error.message)
        else if (code === 'PW006') this.stop(this.shutdown_s, 56)
        else if (/^(none|08|57P|25006)/.test(code)) lost()
        await sleep(Math.min(100 * 2 ** failures++, most) * (0.5 + Math.random() / 2))
      }
    }
  }

  // Waits for the event, but so many seconds at most.
  pause(event, seconds) {
    const signal = AbortSignal.timeout(Math.ceil(Math.min(Math.max(seconds, 0), 2.5) * 1000))
    return once(this, event, { signal }).catch(() => {})
  }

  // Beats, and waits until the next time.
  async beats() {
    if (!this.ear) await this.listen()
    const seconds = this.opened ? await this.beat(this.ear) : 1
    for (const client of this.former.splice(0)) client.connection.stream.destroy()
    await this.pause('beat', seconds)
  }

  // This connection hears notifications, and its session has the worker's lock.
  async listen() {
    const client = new pg.Client(CONNECTION)
    client.on('error', () => {})
    client.on('notification', ({ payload }) => this.notified(payload))
    await client.connect()
    this.ear = client
    await client.query(`${SETTINGS}; listen ${this.schema}`)
    this.notified() // one may have been missed
  }

  // The lock is worth keeping until another connection has answered: handlers run.
  mistrust() {
    if (this.ear) this.former.push(this.ear)
    this.ear = undefined
  }

  notified(payload) {
    if (payload === 'cancel' || payload === 'migrate') return this.emit('beat')
    this.workAt = 0
    this.emit('work')
  }

  async turn() {
    if (!this.opened) await this.open()
    else if (now() >= this.doubts[0]) await this.beat(this.pool, Boolean(this.doubts.shift()))
    else await this.work()
  }

  async open() {
    const sent = now()
    const info = { name: 'node', pid: process.pid, task_identifiers: Object.keys(this.handlers) }
    const call = 'open_worker($1, 1) from pyworker.close_worker($2)' // of the former one
    this.opened = this.last = await this.ask(call, info, this.last?.worker)
    this.aliveAt = sent
    this.doubts = []
    this.emit('beat')
  }

  // Reports and claims, or waits until there is a reason to.
  async work() {
    const ended = [...this.held].filter(job => job.report)
    const room = this.stopping ? 0 : Math.max(this.concurrency + PREFETCH - this.held.size + ended.length, 0)
    const wait = room ? this.workAt - now() : 2.5
    if (!ended.length && wait > 0) return this.pause('work', wait)
    const me = this.opened
    const sql = `select w.* from pyworker.read_reports($2::bigint[], $3::bigint[], $4) r, pyworker.work(
      $1, r.done_ids, r.done_runs, r.done_results, r.reports, $5, $6) w`
    const reports = [...idsOf(ended), ended.map(job => job.report)]
    this.workAt = Infinity // a notification from now on sets it to 0
    const rows = await this.rows(sql, [me.worker, ...reports, room, Object.keys(this.handlers)])
    if (me !== this.opened) return // declared dead meanwhile: none of this is ours
    for (const job of ended) this.held.delete(job)
    for (const row of rows) {
      if (row.kind === 'job') this.held.add(new Job(this, row))
      else if (row.kind === 'turn') this.workAt = this.workAt && now() + row.again_in_s
      else log('refused', row.id, row.run, row.why)
    }
    this.begin()
  }

  // Names all jobs that are held, and hears which of them must stop. Returns when to beat again.
  async beat(on, lostAnswer = false) {
    const me = this.opened, sent = now(), held = [...this.held]
    const fits = this.stopping ? '' : ', pyworker.check_version(1)' // the one that this was tested with
    const sql = `select b.* from pyworker.beat(
      $1, $2::bigint[], $3::bigint[], $4, lost_answer => $5) b${fits}`
    const [alive, ...stops] = await this.rows(sql, [me.worker, ...idsOf(held), !lostAnswer, lostAnswer], on)
    if (me !== this.opened) return 0
    if (alive.kind === 'dead') return this.dead('declared dead') ?? 0
    this.aliveAt = sent
    if (alive.why?.includes('maintain')) this.ask('maintain()').catch(error => log(error.message))
    for (const { id, run, why } of stops) {
      const job = held.find(job => job.id === id && job.run === run)
      if (job.report || job.finished) continue
      if (why === 'lost') this.lose([job], 'the claim is lost')
      else if (job.begun) job.abort(new Error('cancelled while it was running')) // it may ignore it
      else job.end({ do: 'release' })
    }
    this.emit('work')
    return alive.next_in_s
  }

  // Begins those that wait, in their order.
  begin() {
    for (const job of [...this.held].filter(job => !job.begun && !job.report)) {
      if (this.stopping) job.end({ do: 'release' })
      else if (this.running >= this.concurrency || this.alone || this.isSilent) return
      else if (job.crashes > 0 && this.running) return // it may end this process: it runs alone
      else this.perform(job)
    }
  }

  async perform(job) {
    job.begun = true
    this.running++
    this.alone = job.crashes > 0
    await job.perform(this.handlers[job.task_identifier])
    clearTimeout(job.deaf)
    this.alone = false
    this.running--
    if (job.finished) this.held.delete(job) // by its own transaction
    this.begin()
    this.emit('work')
  }

  // Tells a handler to stop. If it does not, only the end of this process stops it.
  abort(job, why, seconds = 5) {
    if (job.report) return
    job.abort(why)
    job.deaf ??= setTimeout(() => {
      log(`job ${job.id} does not stop:`, why.message)
      if (!this.held.has(job)) process.exit(70) // before others run it
      job.fail()
      this.stop(0, 70)
    }, seconds * 1000)
  }

  // Other workers have these jobs, or may have them soon.
  lose(jobs, why, seconds) {
    for (const job of jobs) {
      this.held.delete(job)
      if (job.begun) this.abort(job, new Error(why), seconds)
    }
  }

  dead(why, seconds) {
    log(why)
    this.opened = undefined
    this.lose(this.held, why, seconds)
    this.emit('work')
  }

  // Hands back the jobs that wait. The handlers that run have so many seconds.
  stop(seconds = this.shutdown_s, code = 0) {
    log('stopping: the handlers that run have', seconds, 's')
    this.exitCode ||= code
    this.stopping = true
    this.begin()
    this.emit('work')
    setTimeout(() => {
      for (const job of this.held) this.abort(job, new Report('release'), 1)
      setTimeout(() => this.closed || process.exit(70), 10000).unref() // the database does not answer
    }, seconds * 1000).unref()
  }
}
