import pg from 'pg';
import { lineOf, NoWritableHost } from './connecting.ts';
import { type History, isSameHistory, readHistory } from './history.ts';

/** Longest time to wait for a connection to a host, and for an answer. */
const CONNECT_MS = 1000;
const ANSWER_MS = 1000;
/** For how long all callers get the error of a choice that failed. */
const PAUSE_MS = 250;

interface Host {
  readonly url: string;
  /** Name and port, for people. */
  readonly address: string;
}

/** What a host has answered. */
interface Asked extends Host {
  /** Undefined: the host is a primary. */
  readonly objection: string | undefined;
  readonly history: History | undefined;
}

/**
 * Chooses the host for new connections, of those that a URL lists (`?host=A,B&port=1,2`). A standby is never chosen: it
 * may lack acked steps. Of several primaries, the one with the newest timeline is chosen, and after it none with an
 * older one: that is a primary that a promotion has replaced. With one host, nothing is asked.
 */
export class Hosts {
  /** All hosts with the database, without secrets. */
  readonly description: string;
  readonly #hosts: readonly Host[];
  #chosen: Host;
  #isDoubted: boolean;
  #choosing: Promise<Host> | undefined;
  #newest: History | undefined;
  #moved: () => void = () => {};

  constructor(url: string) {
    this.#hosts = hostsOf(url);
    this.#chosen = this.#hosts[0]!;
    this.#isDoubted = this.#hosts.length > 1;
    this.description = `${this.#hosts.map(({ address }) => address).join(',')}${URL.parse(url)?.pathname ?? ''}`;
  }

  /** The host that was chosen last. */
  get chosen(): Host {
    return this.#chosen;
  }

  /** Whether the hosts must be asked before the next connection. */
  get isDoubted(): boolean {
    return this.#isDoubted;
  }

  /** Calls the listener when another host is chosen than before, or one that has another history. */
  onMoved(listener: () => void): void {
    this.#moved = listener;
  }

  /** Must be called when a connection was lost or the host rejects writes. */
  doubt(): void {
    this.#isDoubted = this.#hosts.length > 1;
  }

  /** Returns the host to connect to. Errors: NoWritableHost. */
  async choose(): Promise<Host> {
    if (!this.#isDoubted) return this.#chosen;
    this.#choosing ??= this.#ask();
    return this.#choosing;
  }

  async #ask(): Promise<Host> {
    const answers = await Promise.all(this.#hosts.map(ask));
    const [found] = answers
      .filter((answer) => this.#objectionTo(answer) === undefined)
      .sort((a, b) => (b.history?.timeline ?? 0) - (a.history?.timeline ?? 0));
    const end = () => {
      this.#choosing = undefined;
    };
    if (found === undefined) {
      setTimeout(end, PAUSE_MS).unref();
      throw new NoWritableHost(answers.map((each) => `${each.address} ${this.#objectionTo(each)}`).join(', '));
    }
    end();
    const { history = this.#newest } = found;
    const isSame =
      found.address === this.#chosen.address &&
      (history === undefined || this.#newest === undefined || isSameHistory(history, this.#newest));
    this.#isDoubted = false;
    this.#chosen = found;
    this.#newest = history;
    if (!isSame) this.#moved();
    return found;
  }

  #objectionTo({ objection, history }: Asked): string | undefined {
    if (objection !== undefined || history === undefined || history.cluster !== this.#newest?.cluster) return objection;
    return history.timeline < this.#newest.timeline ? 'was replaced by a standby that was promoted' : undefined;
  }
}

async function ask(host: Host): Promise<Asked> {
  try {
    return await onceAt(host, async (client) => {
      const { rows } = await client.query<{ standby: boolean }>('select pg_is_in_recovery() as standby');
      const isStandby = rows[0]?.standby !== false;
      const history = isStandby ? undefined : await readHistory(client);
      return { ...host, objection: isStandby ? 'is a standby' : undefined, history };
    });
  } catch (error) {
    return { ...host, objection: `cannot be used (${lineOf(error)})`, history: undefined };
  }
}

/** Clients that connect to the host that is chosen when they are made. */
export function clientOf(hosts: Hosts): new (config?: pg.ClientConfig) => pg.Client {
  return class extends pg.Client {
    constructor(config?: pg.ClientConfig) {
      super({ ...config, connectionString: hosts.chosen.url });
    }
  };
}

/** Uses a connection of its own once. It is given up if it does not answer. */
export async function onceAt<T>({ url }: Host, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({
    connectionString: url,
    connectionTimeoutMillis: CONNECT_MS,
    query_timeout: ANSWER_MS,
    application_name: 'anabranch',
  });
  client.on('error', () => undefined); // a query on a lost connection fails by itself
  try {
    await client.connect();
    return await work(client);
  } finally {
    // Nobody waits for a host that does not answer.
    client.end().catch(() => undefined);
  }
}

function hostsOf(url: string): Host[] {
  const parsed = URL.parse(url);
  if (parsed === null) return [{ url, address: '' }];
  const names = parsed.searchParams.get('host')?.split(',') ?? [parsed.hostname];
  const ports = parsed.searchParams.get('port')?.split(',') ?? [parsed.port];
  return names.map((name, i) => {
    const port = ports[i] ?? ports[0]!;
    const address = port === '' ? name : `${name}:${port}`;
    if (names.length === 1) return { url, address };
    const single = new URL(parsed);
    single.searchParams.set('host', name);
    if (port !== '') single.searchParams.set('port', port);
    return { url: single.href, address };
  });
}
