/** An HTTP/2 server that answers as a test wants, also against the rules of gRPC, and clients of it. */
import { once } from 'node:events';
import {
  createServer,
  type IncomingHttpHeaders,
  type OutgoingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2';
import type { AddressInfo } from 'node:net';
import { type Client, createClient, type Interceptor } from '@connectrpc/connect';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { Access } from '../../src/client/access.ts';
import { ConnectionPool } from '../../src/client/grpc/connection_pool.ts';
import { GrpcTransport } from '../../src/client/grpc/transport.ts';
import type { TcpProxy } from '../support/tcp-proxy.ts';

export type Answer = (stream: ServerHttp2Stream, headers: IncomingHttpHeaders) => unknown;

export interface RawPeer extends AsyncDisposable {
  readonly trajectories: Client<typeof TrajectoryService>;
  readonly states: Client<typeof StateService>;
  /** Sessions in the order of their connections. */
  readonly sessions: readonly ServerHttp2Session[];
}

/** Each call takes the next answer; the last one is taken again and again. */
export async function startRawPeer(
  answers: readonly Answer[],
  { interceptors = [], via }: { readonly interceptors?: Interceptor[]; readonly via?: TcpProxy } = {},
): Promise<RawPeer> {
  const left = [...answers];
  const sessions: ServerHttp2Session[] = [];
  const server = createServer();
  server.on('session', (session) => {
    sessions.push(session);
    session.on('error', () => undefined);
  });
  server.on('stream', (stream: ServerHttp2Stream, headers) => {
    stream.on('error', () => undefined);
    const answer = left.length > 1 ? left.shift() : left[0];
    answer?.(stream, headers);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  via?.retarget({ host: '127.0.0.1', port });
  const origin = via?.url ?? `http://127.0.0.1:${port}`;
  const pool = new ConnectionPool({ origin, tls: {} });
  const access = new Access({});
  const transport = new GrpcTransport({ origin, pool, access, interceptors, streamsPerConnection: () => 100 });
  return {
    trajectories: createClient(TrajectoryService, transport),
    states: createClient(StateService, transport),
    sessions,
    [Symbol.asyncDispose]: async () => {
      pool.close();
      for (const session of sessions) session.destroy();
      server.close();
      await once(server, 'close');
    },
  };
}

export const GRPC = { ':status': 200, 'content-type': 'application/grpc' };

/** Answers with these bytes and trailers. */
export function answering(body: Uint8Array, trailers: OutgoingHttpHeaders = { 'grpc-status': '0' }): Answer {
  return (stream) => {
    stream.respond(GRPC, { waitForTrailers: true });
    stream.on('wantTrailers', () => stream.sendTrailers(trailers));
    stream.end(body);
  };
}
