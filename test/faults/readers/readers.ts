/** Readers that request everything and read nothing. */
import { once } from 'node:events';
import http2, { type ClientHttp2Session, type ClientHttp2Stream } from 'node:http2';
import { ReadStepsRequestSchema, TrajectoryService } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { envelope } from '../../wire/raw.ts';
import { RawConnection } from '../hostile/frames.ts';

const PATH = `/${TrajectoryService.typeName}/${TrajectoryService.method.readSteps.name}`;
const STREAMS_PER_CONNECTION = 90;

export interface Readers {
  readonly count: number;
  /** Resolves when the server has cut off all that can notice it; returns the code of each. */
  cut(): Promise<number[]>;
  /** All disconnect at the same time, without closing properly. */
  vanish(): void;
}

/**
 * `polite` followers leave their windows as they are, so that the server has to stop; `ranges` do the same and request
 * only existing steps; `wide` followers open their windows and leave their sockets unread.
 */
export async function startReaders(
  server: { readonly url: string; readonly port: number },
  trajectoryId: string,
  { polite, ranges, wide }: { readonly polite: number; readonly ranges: number; readonly wide: number },
): Promise<Readers> {
  const request = envelope(ReadStepsRequestSchema, { trajectoryId, follow: true });
  const sessions: ClientHttp2Session[] = [];
  const streams: ClientHttp2Stream[] = [];
  const range = envelope(ReadStepsRequestSchema, { trajectoryId });
  const requests = Array.from({ length: polite + ranges }, (_, i) => (i < polite ? request : range));
  for (let at = 0; at < requests.length; at += STREAMS_PER_CONNECTION) {
    const session = await connected(server.url);
    sessions.push(session);
    for (const each of requests.slice(at, at + STREAMS_PER_CONNECTION)) streams.push(read(session, each));
  }
  const unread = await Promise.all(Array.from({ length: wide }, () => followUnread(server.port, request)));
  const closed = streams.map((stream) => new Promise<void>((resolve) => stream.once('close', resolve)));
  return {
    count: polite + ranges + wide,
    cut: async () => {
      await Promise.all(closed);
      return streams.map(({ rstCode }) => rstCode ?? 0);
    },
    vanish: () => {
      for (const session of sessions) session.socket.resetAndDestroy();
      for (const connection of unread) connection.reset();
    },
  };
}

async function connected(url: string): Promise<ClientHttp2Session> {
  const session = http2.connect(url);
  session.on('error', () => undefined); // its end, which the streams report as well
  await once(session, 'connect');
  return session;
}

function read(session: ClientHttp2Session, request: Uint8Array): ClientHttp2Stream {
  const headers = { ':method': 'POST', ':path': PATH, 'content-type': 'application/grpc+proto', te: 'trailers' };
  const stream = session.request(headers);
  stream.on('error', () => undefined); // the code reports it
  stream.end(request);
  return stream;
}

async function followUnread(port: number, request: Uint8Array): Promise<RawConnection> {
  const connection = await RawConnection.open(port, { wide: true });
  connection.stopReading();
  await connection.request(PATH, request);
  return connection;
}
