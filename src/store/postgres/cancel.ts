import pg from 'pg';

/** A connection as its cancel request needs it: `pg` has these fields, its types do not. */
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
 * Asks Postgres to cancel what a connection is running, over a connection of its own. Resolves when Postgres has passed the request on, or when
 * it cannot be reached. Source: "Canceling Requests in Progress" in the manual's chapter on the message flow.
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
