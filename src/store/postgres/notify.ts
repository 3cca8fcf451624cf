import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import type { Hint } from '../../domain/change.ts';
import { clientOf, type Hosts } from '../postgres_access/hosts.ts';

const CHANNEL = 'anabranch_changes';
/** Postgres accepts less than 8,000 bytes. */
const MAX_PAYLOAD = 7000;
/** More hints than fit into so many notifications are sent as `*`, which means any change. */
const MAX_PAYLOADS = 16;
const COALESCE_MS = 5;
const RECONNECT_MS = 1000;

export interface NotifierOptions {
  readonly hosts: Hosts;
  /** Sends a statement over another connection, while this one is lost. */
  readonly send: (text: string, values: unknown[]) => Promise<unknown>;
  readonly onHint: (hint: Hint | undefined) => void;
  readonly onLost: (error: Error) => void;
}

/**
 * Sends hints between instances. Hints are coalesced and may be lost. They are sent outside of the appending
 * transaction, because NOTIFY locks the whole database at the commit. After a reconnect, listeners are told that
 * anything may have changed.
 */
export class Notifier {
  readonly #options: NotifierOptions;
  readonly #instance = randomUUID();
  readonly #pending = new Set<Hint>();
  #client: pg.Client | undefined;
  #sending: NodeJS.Timeout | undefined;
  #reconnecting: NodeJS.Timeout | undefined;
  #closed = false;
  #lostConnections = 0;

  constructor(options: NotifierOptions) {
    this.#options = options;
  }

  async connect(): Promise<void> {
    try {
      await this.#options.hosts.choose();
    } catch (error) {
      this.#lost(undefined, error as Error);
      return;
    }
    const client = new (clientOf(this.#options.hosts))({
      keepAlive: true,
      application_name: 'anabranch listener',
      pipeline: true,
    } as pg.ClientConfig);
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
    this.#options.onHint(undefined);
  }

  /** Whether hints of other instances arrive. */
  get listening(): boolean {
    return this.#client !== undefined;
  }

  /** Number of lost connections. A server that crashes or is replaced causes one. */
  get losses(): number {
    return this.#lostConnections;
  }

  /** Connects again, because the database was replaced: the connection may lead to the one before. */
  renew(): void {
    if (this.#client !== undefined) this.#lost(this.#client, new Error('the database was replaced'));
  }

  announce(hints: readonly Hint[]): void {
    if (this.#closed) return;
    for (const hint of hints) this.#pending.add(hint);
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
    const lists = listsOf(this.#pending);
    this.#pending.clear();
    const payloads = (lists.length > MAX_PAYLOADS ? ['*'] : lists).map((list) => `${this.#instance}:${list}`);
    const text = 'select pg_notify($1, payload) from unnest($2::text[]) as payload';
    const values = [CHANNEL, payloads];
    // While this instance hears nothing, others still do.
    if (this.#client === undefined) this.#options.send(text, values).catch(() => undefined);
    else this.#client.query(text, values).catch(this.#options.onLost);
  }

  #hear(payload: string): void {
    const colon = payload.indexOf(':');
    if (payload.slice(0, colon) === this.#instance) return;
    const list = payload.slice(colon + 1);
    if (list === '*') this.#options.onHint(undefined);
    else for (const hint of list.split(',')) this.#options.onHint(hint as Hint);
  }

  #lost(client: pg.Client | undefined, error: Error): void {
    if (this.#closed || (this.#client !== undefined && this.#client !== client)) return;
    // A failed reconnect does not count as another loss, because watchers read everything after each loss.
    if (this.#client !== undefined) this.#lostConnections += 1;
    this.#client = undefined;
    this.#options.hosts.doubt();
    this.#options.onLost(error);
    client?.end().catch(() => {});
    clearTimeout(this.#reconnecting);
    this.#reconnecting = setTimeout(() => void this.connect(), RECONNECT_MS);
  }
}

/** Joins hints to lists that fit into a notification each. */
function listsOf(hints: Iterable<Hint>): string[] {
  const lists: string[] = [];
  let list = '';
  for (const hint of hints) {
    if (list !== '' && list.length + 1 + hint.length > MAX_PAYLOAD) {
      lists.push(list);
      list = '';
    }
    list = list === '' ? hint : `${list},${hint}`;
  }
  if (list !== '') lists.push(list);
  return lists;
}
