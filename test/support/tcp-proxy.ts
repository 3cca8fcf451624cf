/**
 * A TCP proxy with configurable network faults: slow, cut in the middle of a message, silent, or so late that bytes of
 * a connection arrive at the server long after its client gave up.
 */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { breakOff, type Direction, Lane, type Weather } from './tcp-lane.ts';

export type { Direction } from './tcp-lane.ts';

/** A port of a host, or a Unix socket. */
export type Target = { readonly host: string; readonly port: number } | { readonly path: string };

export interface TcpProxy {
  readonly host: string;
  readonly port: number;
  /** For HTTP clients: `http://127.0.0.1:PORT`. */
  readonly url: string;
  /** Connections whose client side is open now. */
  readonly open: number;
  /** Connections accepted since the start. */
  readonly accepted: number;
  /** Bytes received from one side and not yet delivered to the other, in one direction or both. */
  held(direction?: Direction): number;
  /** Bytes delivered in a direction since the start, over all connections. */
  delivered(direction: Direction): number;
  /** New connections go to another server from now on (one restarted on a new port). */
  retarget(target: Target): void;
  /** Every chunk arrives this much later, in both directions, in order. */
  setLatency(milliseconds: number): void;
  /** Delivers exactly `bytes` more in a direction, over all connections, then resets all. Resolves after the cut. */
  cutAfter(bytes: number, direction: Direction): Promise<void>;
  /** Ends all connections on both sides now: with RST, or with FIN. */
  cut(how?: 'reset' | 'end'): void;
  /**
   * Delivers nothing and reports nothing, like a dead router; nothing is lost after the release. Applies to new
   * connections too.
   */
  blackhole(): void;
  /**
   * Holds back what clients send; answers of the server are still delivered. Together with `cutClients` and `release`:
   * late bytes.
   */
  hold(): void;
  /** Holds back what the server sends; what clients send is still delivered. */
  mute(): void;
  /** Resets the client side only; the server does not notice, and held bytes stay held. */
  cutClients(): void;
  /** Delivers held bytes, also those of closed clients; resolves when they are on their way to the server. */
  release(): Promise<void>;
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

interface Link {
  readonly client: Socket;
  readonly server: Socket;
  readonly lanes: readonly Lane[];
}

/** The address alone: a target may be a server with more fields. */
function addressOf(target: Target): Target {
  return 'path' in target ? { path: target.path } : { host: target.host, port: target.port };
}

export async function startTcpProxy(target: Target): Promise<TcpProxy> {
  let to = target;
  let accepted = 0;
  const links = new Set<Link>();
  const weather: Weather = { latency: 0, stopped: new Set(), delivered: { toServer: 0, toClient: 0 } };

  const listener = createServer({ allowHalfOpen: true, noDelay: true }, (client) => {
    accepted += 1;
    const server = connect({ ...addressOf(to), allowHalfOpen: true, noDelay: true });
    const link = { client, server, lanes: lanesOf(client, server, weather) };
    links.add(link);
    for (const socket of [client, server]) socket.on('close', () => forget(link));
  });
  const forget = (link: Link) => {
    if (link.client.destroyed && link.server.destroyed) links.delete(link);
  };
  const cut = (how: 'reset' | 'end' = 'reset') => {
    for (const { client, server } of links) {
      for (const socket of [client, server]) {
        if (how === 'end') socket.destroySoon();
        else breakOff(socket);
      }
    }
  };
  const close = async () => {
    cut();
    if (!listener.listening) return;
    listener.close();
    await once(listener, 'close');
  };

  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port } = listener.address() as AddressInfo;
  return {
    host: '127.0.0.1',
    port,
    url: `http://127.0.0.1:${port}`,
    get open() {
      return [...links].filter(({ client }) => !client.destroyed).length;
    },
    get accepted() {
      return accepted;
    },
    held: (direction) =>
      [...links]
        .flatMap(({ lanes }) => lanes.filter((lane) => (direction ?? lane.direction) === lane.direction))
        .reduce((sum, { queued }) => sum + queued, 0),
    delivered: (direction) => weather.delivered[direction],
    retarget: (next) => {
      to = next;
    },
    setLatency: (milliseconds) => {
      weather.latency = milliseconds;
    },
    cutAfter: (bytes, direction) =>
      new Promise((resolve) => {
        const then = () => {
          delete weather.limit;
          cut();
          resolve();
        };
        weather.limit = { direction, left: bytes, then };
      }),
    cut,
    blackhole: () => {
      weather.stopped = new Set(['toServer', 'toClient']);
    },
    hold: () => {
      weather.stopped = new Set(['toServer']);
    },
    mute: () => {
      weather.stopped = new Set(['toClient']);
    },
    cutClients: () => {
      for (const { client } of links) breakOff(client);
    },
    release: async () => {
      weather.stopped = new Set();
      await Promise.all([...links].flatMap(({ lanes }) => lanes.map((lane) => lane.flush())));
    },
    close,
    [Symbol.asyncDispose]: close,
  };
}

/** A side that closes closes the other one too, unless bytes for it are held back. */
function lanesOf(client: Socket, server: Socket, weather: Weather): readonly Lane[] {
  const toServer = new Lane(client, server, 'toServer', weather);
  const toClient = new Lane(server, client, 'toClient', weather);
  client.on('close', (failed) => toServer.sourceClosed(failed));
  server.on('close', (failed) => toClient.sourceClosed(failed));
  return [toServer, toClient];
}
