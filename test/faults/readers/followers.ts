/** Followers that ask for everything and take nothing. */
import { once } from 'node:events';
import http2, { type ClientHttp2Session, type ClientHttp2Stream } from 'node:http2';
import { ReadStepsRequestSchema, TrajectoryService } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { envelope } from '../../wire/raw.ts';
import { RawConnection } from '../hostile/frames.ts';

const PATH = `/${TrajectoryService.typeName}/${TrajectoryService.method.readSteps.name}`;
const STREAMS_PER_CONNECTION = 90;

export interface Followers {
  readonly count: number;
  /** Resolves when the server has cut all that can hear of it; returns the code of each. */
  cut(): Promise<number[]>;
  /** All are gone at once, without a word. */
  vanish(): void;
}

/** `polite` ones leave their windows as they are, so that the server has to stop; `wide` ones open them and leave their sockets unread. */
export async function startFollowers(
  server: { readonly url: string; readonly port: number },
  trajectoryId: string,
  { polite, wide }: { readonly polite: number; readonly wide: number },
): Promise<Followers> {
  const request = envelope(ReadStepsRequestSchema, { trajectoryId, follow: true });
  const sessions: ClientHttp2Session[] = [];
  const streams: ClientHttp2Stream[] = [];
  for (let left = polite; left > 0; left -= STREAMS_PER_CONNECTION) {
    const session = await connected(server.url);
    sessions.push(session);
    for (let i = 0; i < Math.min(left, STREAMS_PER_CONNECTION); i += 1) streams.push(follow(session, request));
  }
  const unread = await Promise.all(Array.from({ length: wide }, () => followUnread(server.port, request)));
  const closed = streams.map((stream) => new Promise<void>((resolve) => stream.once('close', resolve)));
  return {
    count: polite + wide,
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
  session.on('error', () => undefined); // its end, which the streams tell as well
  await once(session, 'connect');
  return session;
}

function follow(session: ClientHttp2Session, request: Uint8Array): ClientHttp2Stream {
  const headers = { ':method': 'POST', ':path': PATH, 'content-type': 'application/grpc+proto', te: 'trailers' };
  const stream = session.request(headers);
  stream.on('error', () => undefined); // the code tells
  stream.end(request);
  return stream;
}

async function followUnread(port: number, request: Uint8Array): Promise<RawConnection> {
  const connection = await RawConnection.open(port, { wide: true });
  connection.stopReading();
  await connection.request(PATH, request);
  return connection;
}
