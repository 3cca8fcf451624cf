import pg from 'pg';
import { clientOf, type Hosts } from './hosts.ts';

/**
 * Longest time to wait for a connection, and for an answer. Both together are shorter than the silence after which a
 * connection is given up.
 */
const CONNECT_MS = 1000;
const ANSWER_MS = 1000;
/** The connection is closed after this time without a question. */
const IDLE_MS = 60_000;

/**
 * Asks Postgres which of its processes work on a statement, over a connection of its own, so that the question never
 * waits for a free one.
 */
export class Activity {
  readonly #pool: pg.Pool;

  constructor(hosts: Hosts) {
    this.#pool = new pg.Pool({
      Client: clientOf(hosts),
      max: 1,
      connectionTimeoutMillis: CONNECT_MS,
      query_timeout: ANSWER_MS,
      idleTimeoutMillis: IDLE_MS,
      allowExitOnIdle: true,
      application_name: 'anabranch',
    } as pg.PoolConfig);
    // Lost while idle: the next question connects again.
    this.#pool.on('error', () => undefined);
  }

  /** Behind a pooler the process ids are not those of Postgres, and none of them is found. */
  async findWorking(processIds: readonly number[]): Promise<readonly number[]> {
    const { rows } = await this.#pool.query<{ pid: number }>(
      `select pid from pg_catalog.pg_stat_activity where state = 'active' and pid = any($1)`,
      [processIds],
    );
    return rows.map(({ pid }) => pid);
  }

  end(): Promise<void> {
    return this.#pool.end();
  }
}

/** Fields of a `pg` client that a cancel request needs and its types lack. */
export interface CancellableClient {
  readonly host: string;
  readonly port: number;
  readonly ssl: unknown;
  readonly processID: number;
  readonly secretKey: number;
  readonly connectionParameters: { readonly sslNegotiation?: string };
}

interface RawConnection {
  on(event: 'connect' | 'sslconnect' | 'end' | 'error', listener: () => void): void;
  connect(portOrPath: number | string, host?: string): void;
  requestSsl(): void;
  cancel(processId: number, secretKey: number): void;
  readonly stream: { destroy(): void };
}

const GIVE_UP_MS = 2000;

/**
 * Asks Postgres to cancel the running statement of a connection, over a separate connection. Resolves when Postgres has
 * forwarded the request, or cannot be reached. Source: "Canceling Requests in Progress" in the message flow chapter of
 * the manual.
 */
export function requestCancel(client: CancellableClient): Promise<void> {
  const { host, port, ssl, processID, secretKey } = client;
  const { sslNegotiation } = client.connectionParameters;
  // `pg` exports the class without its type.
  const connection = new (pg as unknown as { Connection: new (options: object) => RawConnection }).Connection({
    ssl,
    sslNegotiation,
  });
  return new Promise((resolve) => {
    const giveUp = setTimeout(() => connection.stream.destroy(), GIVE_UP_MS);
    const cancel = () => connection.cancel(processID, secretKey);
    connection.on('connect', () => {
      if (!ssl) cancel();
      else if (sslNegotiation !== 'direct') connection.requestSsl();
    });
    connection.on('sslconnect', cancel);
    connection.on('error', () => connection.stream.destroy());
    connection.on('end', () => {
      clearTimeout(giveUp);
      resolve();
    });
    if (host.startsWith('/')) connection.connect(`${host}/.s.PGSQL.${port}`);
    else connection.connect(port, host);
  });
}
