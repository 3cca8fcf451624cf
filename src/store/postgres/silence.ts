import { type CancellableClient, requestCancel } from '../postgres_access/beside_pool.ts';

/** The database is silent if all connections are quiet for this long while a caller waits for an answer. */
const QUIET_MS = 4500;
const TICK_MS = 250;
/**
 * A single connection is given up one tick later, so that a silent database is not mistaken for a single quiet
 * connection.
 */
const QUIET_ALONE_MS = QUIET_MS + TICK_MS;
/** How often the database is asked whether it works on the statements of quiet connections. */
const ASK_MS = 1500;
/** If the whole database is quiet, a connection or a waiter that has waited for this long is given up with it. */
const FRESH_MS = 1000;

/** The database did not answer. */
export class Silence extends Error {
  /** Whether all connections were quiet. Otherwise only one was. */
  readonly whole: boolean;

  constructor(whole: boolean) {
    super(`the database was silent for ${QUIET_MS / 1000} s on ${whole ? 'all connections' : 'a connection'}`);
    this.whole = whole;
  }
}

/** Fields of a `pg` client that its types lack. The stream is a socket. */
interface Connected {
  /** Null until the connection is established. */
  readonly processID: number | null;
  readonly connection: {
    readonly stream: {
      readonly bytesRead: number;
      readonly bytesWritten: number;
      readonly writableLength: number;
      readonly _handle?: { readonly writeQueueSize?: number } | null;
      destroy(error: Error): void;
    };
  };
}

/** A wait for the database, and the number of quiet ticks so far. */
interface Patient {
  quietTicks: number;
  readonly giveUp: (silence: Silence) => void;
}

interface WatchedConnection extends Patient {
  readonly client: Connected;
  traffic: Traffic;
}

/** Bytes of a connection so far. */
interface Traffic {
  readonly received: number;
  /** Bytes that the operating system has accepted for sending. */
  readonly taken: number;
  /** Bytes that wait because the peer reads more slowly than this process writes. */
  readonly queued: number;
}

/**
 * Finds out that the database is silent: no byte arrives from it, and it takes none. Silence is counted from the last
 * progress, not from when a statement was submitted, so a busy database that works off a long queue is not silent. It
 * is counted in ticks of a timer: the time for which this process itself was busy does not count, since what arrived
 * meanwhile is read before the next tick.
 *
 * A statement that runs for long is quiet as well. So the database is asked, over another connection, which statements
 * of quiet connections it works on. Its answer ends the silence of the database and of these connections.
 */
export class SilenceWatch {
  readonly #connections = new Map<object, WatchedConnection>();
  readonly #waiters = new Set<Patient>();
  readonly #timer: NodeJS.Timeout;
  readonly #findWorking: (processIds: readonly number[]) => Promise<readonly number[]>;
  /** For how many ticks there were waiters and no answer. */
  #quietTicks = 0;
  /** Whether a connection was answered since the last tick and is no longer watched. */
  #answered = false;

  /** True while the database is asked. */
  #asking = false;

  /**
   * `findWorking` returns those of the given process ids that the database works for. Rejects if the database does not
   * answer.
   */
  constructor(findWorking: (processIds: readonly number[]) => Promise<readonly number[]>) {
    this.#findWorking = findWorking;
    this.#timer = setInterval(() => this.#tick(), TICK_MS).unref();
  }

  /** Watches a connection, because a caller waits for its answer. */
  watch(client: object): void {
    const connected = client as Connected;
    const giveUp = (silence: Silence) => {
      // If other connections are answered, the statement may still run in the database and hold locks.
      if (!silence.whole && connected.processID !== null) void requestCancel(client as CancellableClient);
      connected.connection.stream.destroy(silence);
    };
    this.#connections.set(client, { client: connected, traffic: trafficOf(connected), quietTicks: 0, giveUp });
  }

  unwatch(client: object): void {
    const watched = this.#connections.get(client);
    if (watched === undefined) return;
    this.#connections.delete(client);
    this.#answered ||= isAnswering(watched.traffic, trafficOf(watched.client));
  }

  /**
   * Calls `giveUp` if the whole database is silent while the caller waits for a free connection. Returns a function
   * that ends the wait.
   */
  wait(giveUp: (silence: Silence) => void): () => void {
    const waiter = { quietTicks: 0, giveUp };
    this.#waiters.add(waiter);
    return () => this.#waiters.delete(waiter);
  }

  close(): void {
    clearInterval(this.#timer);
  }

  #tick(): void {
    let answered = this.#answered;
    this.#answered = false;
    for (const watched of this.#connections.values()) {
      const before = watched.traffic;
      watched.traffic = trafficOf(watched.client);
      watched.quietTicks = isAnswering(before, watched.traffic) ? 0 : watched.quietTicks + 1;
      answered ||= watched.quietTicks === 0;
    }
    for (const waiter of this.#waiters) waiter.quietTicks += 1;
    const somebodyWaits = this.#connections.size + this.#waiters.size > 0;
    this.#quietTicks = answered || !somebodyWaits ? 0 : this.#quietTicks + 1;
    this.#giveUpQuiet();
    this.#askForQuiet();
  }

  #askForQuiet(): void {
    const quiet = [...this.#connections.values()].filter(
      ({ client, quietTicks }) => client.processID !== null && isLong(quietTicks, ASK_MS),
    );
    if (this.#asking || quiet.length === 0) return;
    this.#asking = true;
    this.#findWorking(quiet.map(({ client }) => client.processID ?? 0))
      .then(
        (working) => {
          this.#answered = true;
          for (const each of quiet) if (working.includes(each.client.processID ?? 0)) each.quietTicks = 0;
        },
        () => undefined, // No answer: the silence lasts.
      )
      .finally(() => {
        this.#asking = false;
      });
  }

  #giveUpQuiet(): void {
    const whole = isLong(this.#quietTicks, QUIET_MS);
    const quiet = [...this.#connections.values()].filter(({ quietTicks }) =>
      isLong(quietTicks, whole ? FRESH_MS : QUIET_ALONE_MS),
    );
    const waiting = whole ? [...this.#waiters].filter(({ quietTicks }) => isLong(quietTicks, FRESH_MS)) : [];
    for (const { giveUp } of [...waiting, ...quiet]) giveUp(new Silence(whole));
  }
}

function isLong(ticks: number, milliseconds: number): boolean {
  return ticks * TICK_MS >= milliseconds;
}

function trafficOf({ connection: { stream } }: Connected): Traffic {
  const queued = stream.writableLength + (stream._handle?.writeQueueSize ?? 0);
  return { received: stream.bytesRead, taken: stream.bytesWritten - queued, queued };
}

/** Sent bytes alone prove nothing, because the operating system buffers bytes for a peer that does not read. */
function isAnswering(before: Traffic, now: Traffic): boolean {
  return now.received !== before.received || (before.queued > 0 && now.taken > before.taken);
}
