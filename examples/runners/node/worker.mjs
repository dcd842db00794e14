// A worker by docs/protocol.md. Four things happen side by side: the loops of `turn` and `beats`, the
// handlers, and a fence that stops the handlers when the database is silent.
import { EventEmitter, once } from 'node:events'
import { uptime as now } from 'node:os' // goes on while the machine sleeps
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Job, Report } from './job.mjs'

const PREFETCH = 10 // jobs that wait here, besides those that run
const HOLD = 1 // seconds from the request of a claim until its jobs begin or go back
const PATIENCE = 25 // seconds for handlers that run when the worker is told to end
const GRACE = 2 // seconds for a handler that must stop: with stop_after_s, less than ttl_s
const DOUBT = 128 // seconds: for so long a call whose answer was lost may still commit
const CONNECTION = { connectionString: process.env.DATABASE_URL, connectionTimeoutMillis: 5000,
  keepAlive: true, keepAliveInitialDelayMillis: 5000 }
const KEEPALIVES = `set tcp_user_timeout = 14000; set tcp_keepalives_idle = 8;
  set tcp_keepalives_interval = 2; set tcp_keepalives_count = 3`
const idsOf = jobs => [jobs.map(job => job.id), jobs.map(job => job.run)]
const log = (...words) => console.error(new Date().toISOString(), ...words)

// From open_worker to close_worker.
export class Worker extends EventEmitter {
  held = new Set() // the jobs that are claimed and not reported, in the order of their claims
  aliveAt = Infinity // when the last beat that was answered was sent
  workAt = 0 // when to claim again
  woken = false // by a notification, since the last claim
  vain = 0 // a notification's claim is put off by less: the last ones brought nothing
  doubtUntil = 0 // until then jobs may come to light that an answer had, which was lost
  apartUntil = 0 // until then each turn reports one job: another session has locked some
  calmUntil = 0 // until then no job waits here: some have waited too long
  calm = 0 // for how long, then
  trip = 0 // how long the last claim took
  alone = HOLD // how long a job may wait that must run alone: twice as long each time
  shyUntil = 0 // until then another process may take it

  // former: the worker of this process whose jobs others have, or may have soon.
  // atMostOnce: the tasks whose jobs never run twice, whatever delivery they were added with.
  constructor(handlers, { schema = 'pyworker', concurrency = 10, atMostOnce = [], former } = {}) {
    super()
    Object.assign(this, { handlers, concurrency, atMostOnce, former: former?.id })
    this.schema = pg.escapeIdentifier(schema)
    this.ears = former?.ears ?? [] // connections for beat: all but the newest have not answered
    this.free = concurrency // places for handlers
    // For work, and for what handlers call: a transaction, and another call during it.
    const verify = (client, done) => client.on('error', () => {}).query(KEEPALIVES, done)
    this.pool = new pg.Pool({ ...CONNECTION, max: 2 * concurrency + 2, verify })
    this.pool.on('error', () => {}) // a connection that is lost fails its next query
  }

  // Each call is a transaction of its own.
  async ask(sql, values, on = this.pool) {
    const text = sql.replaceAll('pyworker.', `${this.schema}.`)
    return (await on.query({ text, values, query_timeout: this.ears.includes(on) ? 6000 : 60000 })).rows
  }

  // Returns when others have its jobs, or when it was told to stop: then the process must end.
  async run() {
    const fence = setInterval(() => this.begin(), 200)
    await this.repeat(5000, () => this.id ? this.turn() : this.open())
    this.emit('beat')
    await this.beating
    while (this.dead && this.free < this.concurrency) await this.pause('work', 1) // until all handlers end
    clearInterval(fence)
    if (!this.dead) await this.ask('select pyworker.close_worker($1)', [this.id]).catch(() => {})
    this.pool.end()
  }

  // Repeats a step. After an error it waits, each time twice as long, `most` ms at most.
  async repeat(most, step) {
    for (let failures = 0; !this.isDead() && !(this.stopping && !this.held.size); ) {
      try {
        await step()
        failures = 0
      } catch (error) {
        log(error.code ?? '', error.message)
        this.workAt = 0
        this.doubtUntil = now() + DOUBT
        if (error.code === 'PW004') this.die(error.message)
        if (error.code === 'PW006') this.stop(56)
        await sleep(Math.min(100 * 2 ** failures++, most) * (0.5 + Math.random() / 2))
      }
    }
  }

  // Waits for the event, but so many seconds at most.
  pause(event, seconds = 0) {
    const signal = AbortSignal.timeout(Math.ceil(Math.min(Math.max(seconds, 0), 5) * 1000))
    return once(this, event, { signal }).catch(() => {})
  }

  async open() {
    const sent = now()
    const info = { name: 'node', pid: process.pid, task_identifiers: Object.keys(this.handlers) }
    const sql = 'select pyworker.open_worker($1, 1) as opened from pyworker.close_worker($2)'
    const [{ opened }] = await this.ask(sql, [info, this.former])
    this.id = opened.worker
    this.patience = Math.min(opened.stop_after_s, 15)
    this.aliveAt = sent
    log('started: worker', this.id, 'for the tasks', info.task_identifiers.join(', '))
    this.beating = this.repeat(500, () => this.beats())
  }

  // Reports and claims, or waits until there is a reason to.
  async turn() {
    if (now() < this.doubtUntil) await this.beat(this.pool, true)
    const ended = [...this.held].filter(job => job.report && now() >= job.asideUntil)
    if (now() < this.apartUntil) ended.splice(1)
    const room = this.room(ended)
    const wait = room ? this.workAt - now() : Math.max(this.shyUntil - now(), 0) || 2.5
    if (!ended.length && wait > 0) return this.pause('work', wait)
    const sql = `select w.* from set_config('lock_timeout', $7, true) t,
      pyworker.read_reports($2::bigint[], $3::bigint[], $4) r,
      pyworker.work($1, r.done_ids, r.done_runs, r.done_results, r.reports, $5, $6) w`
    const reports = [...idsOf(ended), ended.map(job => job.report)]
    const values = [this.id, ...reports, room, Object.keys(this.handlers), ended.length > 1 ? '1s' : '200ms']
    const woken = this.woken, sent = now()
    this.woken = false
    this.workAt = Infinity // a notification from now on sets it to a time
    const rows = await this.ask(sql, values).catch(error => this.setAside(ended, error))
    const until = this.until(sent, room)
    for (const row of rows ?? []) {
      if (row.kind === 'job') this.held.add(new Job(this, row, until + (row.crashes ? this.alone - HOLD : 0)))
      else if (row.kind === 'turn') this.workAt = Math.min(this.workAt, now() + row.again_in_s)
      else log('refused', row.id, row.run, row.why)
    }
    if (rows?.some(row => row.kind === 'job')) this.vain = 0
    else if (woken && rows) this.vain = Math.min(2 * this.vain || 0.005, 0.1)
    for (const job of rows ? ended : []) this.held.delete(job)
    this.begin()
  }

  // How many jobs to claim, when these are reported: none while a job runs alone, or waits for that.
  room(ended) {
    const alone = [...this.held].some(job => job.crashes && !job.report)
    if (this.stopping || alone || (now() < this.shyUntil && this.free < this.concurrency)) return 0
    const ahead = now() < this.calmUntil ? 0 : PREFETCH
    return Math.max(this.concurrency + ahead - this.held.size + ended.length, 0)
  }

  // Until when claimed jobs begin or go back. If the answer takes longer, the process was paused, or the
  // network is slow: then the next one takes as long, and the time counts from the answer.
  until(sent, room) {
    const trip = now() - sent, slow = trip > HOLD && trip <= 2 * this.trip
    if (room) this.trip = trip
    return (slow ? now() : sent) + HOLD
  }

  // Another session has locked some of these jobs: for some seconds the others are reported, one by one.
  setAside(ended, error) {
    if (error.code !== '55P03' || !ended.length) throw error
    if (ended.length > 1) this.apartUntil = now() + 5
    else ended[0].asideUntil = now() + 5
    this.workAt = 0
  }

  // Beats, and waits until the next time. A connection that does not answer is not asked again; it is kept
  // until another one has answered, as it may have the lock.
  async beats() {
    const ear = this.ear ?? await this.listen()
    this.ear = undefined
    const seconds = await this.beat(ear)
    this.ear = ear
    for (const former of this.ears.splice(0, this.ears.length - 1)) former.connection.stream.destroy()
    await this.pause('beat', seconds)
  }

  // This connection hears notifications, and its session has the worker's lock.
  async listen() {
    const ear = new pg.Client(CONNECTION)
    ear.on('error', () => {})
    const hear = payload => {
      if (payload === 'cancel' || payload === 'migrate') return this.emit('beat')
      this.woken = true
      this.workAt = Math.min(this.workAt, now() + this.vain * Math.random())
      this.emit('work')
    }
    ear.on('notification', note => hear(note.payload))
    await ear.connect()
    this.ears.push(ear)
    const text = `${KEEPALIVES}; set statement_timeout = '4s'; listen ${this.schema}`
    await ear.query({ text, query_timeout: 6000 })
    hear('') // one may have been missed
    return ear
  }

  // Names all jobs that are held, and hears which of them must stop. Returns when to beat again.
  async beat(on, lostAnswer = false) {
    const sent = now(), held = [...this.held]
    const fits = this.stopping ? '' : ', pyworker.check_version(1)' // the one that this was tested with
    const sql = `select b.* from pyworker.beat(
      $1, $2::bigint[], $3::bigint[], $4, lost_answer => $5) b${fits}`
    const [alive, ...stops] = await this.ask(sql, [this.id, ...idsOf(held), !lostAnswer, lostAnswer], on)
    if (alive.kind === 'dead') return this.die('declared dead')
    this.aliveAt = sent
    if (alive.why?.includes('maintain')) this.ask('select pyworker.maintain()').catch(log)
    for (const { id, run, why } of stops) {
      const job = held.find(job => job.id === id && job.run === run)
      if (job.report || job.finished) continue
      if (why === 'lost') this.lose([job], 'the claim is lost')
      else if (job.begun) job.tell(new Error('cancelled while it was running')) // it may ignore it
      else job.end(new Report('release', { begun: false }))
    }
    this.emit('work')
    return alive.next_in_s
  }

  // Begins the jobs that wait, in their order. Those that have waited too long go back.
  begin() {
    let full = this.isDead()
    for (const job of [...this.held].filter(job => !job.begun && !job.report)) {
      const places = job.crashes > 0 ? this.concurrency : 1 // it may end this process: it runs alone
      full ||= places > this.free
      if (this.stopping || now() > job.until) this.goesBack(job, full)
      else if (!full) this.perform(job, places)
    }
  }

  // Then nothing is claimed ahead for a while: a job that goes back has started, as a rate counts.
  goesBack(job, full) {
    job.end(new Report('release', { begun: false }))
    this.emit('work')
    if (now() >= this.calmUntil) {
      this.calm = now() < this.calmUntil + this.calm ? Math.min(2 * this.calm, 64) : 2
      this.calmUntil = now() + this.calm
    }
    if (job.crashes && full) {
      this.alone = Math.min(2 * this.alone, 64)
      this.shyUntil = now() + 0.25
    }
  }

  async perform(job, places) {
    job.begun = true
    if (job.crashes) this.alone = HOLD
    this.free -= places
    let timer
    try {
      const once = job.delivery === 'at_most_once' || this.atMostOnce.includes(job.task_identifier)
      if (once) await this.start(job)
      if (job.signal.aborted || this.isDead()) throw new Report('release', { begun: false })
      job.called = true
      const late = () => this.abort(job, new Error(`timed out after ${job.timeout_s} s`))
      if (job.timeout_s) timer = setTimeout(late, Math.min(job.timeout_s * 1000, 2 ** 31 - 1))
      job.end(new Report('done', { result: await this.handlers[job.task_identifier](job.payload, job) }))
    } catch (error) {
      if (!(error instanceof Report || job.signal.aborted)) {
        log(`job ${job.id} (${job.task_identifier}) failed: ${error}`)
      }
      job.end(job.called && job.signal.aborted ? job.signal.reason : error)
    }
    clearTimeout(timer)
    this.free += places
    if (job.finished) this.held.delete(job) // by its own transaction
    this.begin()
    this.emit('work')
  }

  // Without an answer, or with a late one, the job may be started. But its handler has done nothing.
  async start(job) {
    const error = 'start_job was not answered in time'
    const started = await job.ask("start_job($1, $2, 'at_most_once')").catch(() => undefined)
    if (started === false) throw new Report('release', { begun: false })
    if (!started || job.signal.aborted || this.isDead()) throw new Report('not_started', { error })
  }

  // Tells a handler to stop. If it does not, only the end of this process stops it.
  abort(job, why) {
    job.tell(why)
    setTimeout(() => {
      if (!job.begun || job.report) return
      log(`job ${job.id} does not stop:`, why.message)
      if (!this.held.has(job)) process.exit(70) // before others run it
      job.end(why)
      this.stop(70)
    }, GRACE * 1000).unref()
  }

  // Other workers have these jobs, or may have them soon.
  lose(jobs, why) {
    for (const job of jobs) {
      this.held.delete(job)
      this.abort(job, new Error(why))
    }
  }

  // True if others have all jobs, or may have them soon as no beat was answered.
  isDead() {
    if (now() > this.aliveAt + this.patience) this.die('the database does not answer')
    return this.dead
  }

  die(why) {
    if (this.dead) return
    log(why)
    this.dead = true
    this.lose(this.held, why)
    this.emit('work')
  }

  // Hands back the jobs that wait. The handlers that run have some time, but not if it is told again.
  stop(code = 0) {
    const seconds = this.stopping || code === 70 ? 0 : PATIENCE
    log('stopping: the handlers that run have', seconds, 's')
    this.exitCode ||= code
    this.stopping = true
    this.begin()
    this.emit('work')
    setTimeout(() => {
      for (const job of this.held) this.abort(job, new Report('release'))
      setTimeout(() => process.exit(70), 10000).unref() // the database does not answer
    }, seconds * 1000).unref()
  }
}
