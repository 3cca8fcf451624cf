import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { type Change, changeText, parseChange } from '../../domain/change.ts';

const CHANNEL = 'anabranch_changes';
/** Postgres accepts less than 8,000 bytes. A longer list is sent as `*`, which means any key. */
const MAX_PAYLOAD = 7000;
const COALESCE_MS = 5;
const RECONNECT_MS = 1000;

export interface NotifierOptions {
  readonly url: string;
  readonly onChange: (change: Change | undefined) => void;
  readonly onLost: (error: Error) => void;
}

/**
 * Sends hints between instances about changes. Hints are coalesced and may be lost. They are sent outside of the
 * appending transaction, because NOTIFY locks the whole database at the commit. After a reconnect, listeners are
 * notified as if everything had changed.
 */
export class Notifier {
  readonly #options: NotifierOptions;
  readonly #instance = randomUUID();
  readonly #pending = new Set<string>();
  #client: pg.Client | undefined;
  #sending: NodeJS.Timeout | undefined;
  #reconnecting: NodeJS.Timeout | undefined;
  #closed = false;
  #lostConnections = 0;

  constructor(options: NotifierOptions) {
    this.#options = options;
  }

  async connect(): Promise<void> {
    const client = new pg.Client({
      connectionString: this.#options.url,
      keepAlive: true,
      application_name: 'anabranch listener',
      pipeline: true,
    });
    // A lost connection causes several events.
    let isLost = false;
    const lose = (error: Error) => {
      if (!isLost) this.#lost(client, error);
      isLost = true;
    };
    client.on('error', lose);
    client.on('end', () => lose(new Error('the listening connection ended')));
    client.on('notification', ({ payload }) => this.#hear(payload ?? ''));
    try {
      await client.connect();
      await client.query(`listen ${CHANNEL}`);
    } catch (error) {
      lose(error as Error);
      return;
    }
    if (this.#closed) {
      await client.end();
      return;
    }
    this.#client = client;
    this.#options.onChange(undefined);
  }

  get listening(): boolean {
    return this.#client !== undefined;
  }

  /** Number of lost connections. A server that crashes or is replaced causes one. */
  get losses(): number {
    return this.#lostConnections;
  }

  announce(changes: readonly Change[]): void {
    for (const change of changes) this.#pending.add(changeText(change));
    if (this.#pending.size > 0) this.#sending ??= setTimeout(() => this.#send(), COALESCE_MS);
  }

  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#sending);
    clearTimeout(this.#reconnecting);
    const client = this.#client;
    this.#client = undefined;
    await client?.end().catch(this.#options.onLost);
  }

  #send(): void {
    this.#sending = undefined;
    const list = [...this.#pending].join(',');
    this.#pending.clear();
    const payload = `${this.#instance}:${list.length > MAX_PAYLOAD ? '*' : list}`;
    this.#client?.query('select pg_notify($1, $2)', [CHANNEL, payload]).catch(this.#options.onLost);
  }

  #hear(payload: string): void {
    const [instance, list = ''] = payload.split(':');
    if (instance === this.#instance) return;
    if (list === '*') this.#options.onChange(undefined);
    else for (const text of list.split(',')) this.#options.onChange(parseChange(text));
  }

  #lost(client: pg.Client, error: Error): void {
    if (this.#closed || (this.#client !== undefined && this.#client !== client)) return;
    // A failed reconnect does not count as another loss, because watchers read everything after each loss.
    if (this.#client !== undefined) this.#lostConnections += 1;
    this.#client = undefined;
    this.#options.onLost(error);
    client.end().catch(() => {});
    clearTimeout(this.#reconnecting);
    this.#reconnecting = setTimeout(() => void this.connect(), RECONNECT_MS);
  }
}
