/** Servers that stop behind HAProxy while programs in several languages append. */
import { type ChildProcessByStdio, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { mkdtemp } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { create } from '@bufbuild/protobuf';
import { createClient } from '@connectrpc/connect';
import * as grpc from '@grpc/grpc-js';
import { expect, inject, it } from 'vitest';
import { StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, connectClient, openWriter, readSteps, reasonOf } from '../../src/client/index.ts';
import { BALANCED, startBalancer } from '../support/balancer.ts';
import { createAuthority, writeIssued } from '../support/certificates.ts';
import { createPostgresDatabase } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { freePort } from '../support/free_port.ts';
import { requireIntact } from '../support/intact.ts';
import { startPostgres } from '../support/postgres.ts';
import { spawnServer } from '../support/spawned-server.ts';
import { AppendCall } from '../wire/append-call.ts';
import { createGrpcJsTransport } from '../wire/grpc-js-transport.ts';
import { PYTHON, PYTHON_PATH } from './tools.ts';

const HAS_HAPROXY = spawnSync('haproxy', ['-v']).status === 0;
const DRAINS = dose(3, 20);
/** The default beyond loopback. */
const LAME_DUCK_SECONDS = 5;
/** Steps that each call and stream must get on with between two drains. */
const PROGRESS = 10;
const PAUSE_MS = 40;
const TEST_MS = 600_000;

/** A program that appends to two trajectories: by unary calls, and over streams. */
interface Appending {
  readonly name: string;
  readonly unary: string;
  readonly streamed: string;
  /** Acked steps, and streams that ended because their server stopped. */
  readonly counts: Record<'unary' | 'stream' | 'drained', number>;
  /** Rejects with the first error that its user sees. */
  readonly ended: Promise<void>;
  stop(): void;
}

type Begun = Pick<Appending, 'name' | 'unary' | 'streamed'>;

function appendElsewhere(begun: Begun, program: string, args: readonly string[], env = {}): Appending {
  const child: ChildProcessByStdio<Writable, Readable, Readable> = spawn(
    program,
    [...args, begun.unary, begun.streamed],
    {
      stdio: ['pipe', 'pipe', 'pipe'],
      env: { ...process.env, ...env },
    },
  );
  const counts = { unary: 0, stream: 0, drained: 0 };
  createInterface(child.stdout).on('line', (line) => {
    const [what, count] = line.split(' ') as [keyof typeof counts, string?];
    counts[what] = count === undefined ? counts[what] + 1 : Number(count);
  });
  const errors = text(child.stderr);
  const ended = once(child, 'close').then(async ([code]) => {
    if (code !== 0) throw new Error(`${begun.name} ended with code ${code}:\n${await errors}`);
  });
  return { ...begun, counts, ended, stop: () => child.stdin.end() };
}

type Trajectories = AnabranchClient['trajectories'];
type AppendOverStreams = (trajectoryId: string, counts: Appending['counts'], isOver: () => boolean) => Promise<void>;

/** Opens a stream again when its server stops. Any other end of a stream is an error. */
function overCalls(trajectories: Trajectories): AppendOverStreams {
  return async (trajectoryId, counts, isOver) => {
    const open = { trajectoryId, writerId: 'raw', takeOverEpoch: undefined as bigint | undefined };
    for (let number = 0n; !isOver(); ) {
      try {
        const { call, opened } = await AppendCall.open(trajectories, open, TEST_MS);
        open.takeOverEpoch = opened.epoch;
        while (!isOver()) {
          await call.append([create(StepSchema, { stepNumber: number, infoJson: `${number}` })]);
          number += 1n;
          counts.stream = Number(number);
          await delay(PAUSE_MS);
        }
        await call.close();
      } catch (error) {
        if (reasonOf(error) !== 'SERVER_DRAINING') throw error;
        counts.drained += 1;
      }
    }
  };
}

function byWriter(client: AnabranchClient): AppendOverStreams {
  return async (trajectoryId, counts, isOver) => {
    await using writer = await openWriter(client, { trajectoryId });
    while (!isOver()) {
      await writer.append({ infoJson: `${counts.stream}` });
      counts.stream += 1;
      await delay(PAUSE_MS);
    }
    await writer.close();
  };
}

function appendHere(begun: Begun, trajectories: Trajectories, appendOverStreams: AppendOverStreams): Appending {
  const counts = { unary: 0, stream: 0, drained: 0 };
  let isOver = false;
  const byCalls = async () => {
    for (let number = 0n; !isOver; number += 1n) {
      const step = { stepNumber: number, infoJson: `${number}` };
      await trajectories.appendStep({ trajectoryId: begun.unary, step });
      counts.unary += 1;
      await delay(PAUSE_MS);
    }
  };
  const overStreams = appendOverStreams(begun.streamed, counts, () => isOver);
  const ended = Promise.all([byCalls(), overStreams]).then(() => undefined);
  return {
    ...begun,
    counts,
    ended,
    stop: () => {
      isOver = true;
    },
  };
}

it.skipIf(!HAS_HAPROXY)(
  'A2, D1: SIGTERM of servers behind HAProxy shows no client an error, and loses nothing',
  async () => {
    await using postgres = await startPostgres();
    const database = await createPostgresDatabase(postgres.url); // goes with its cluster
    const authority = createAuthority();
    const ca = path.join(await mkdtemp(path.join(os.tmpdir(), 'anabranch-balanced-')), 'ca.crt');
    writeFileSync(ca, authority.cert);
    const places = await Promise.all(
      BALANCED.map(async ({ host }) => ({
        port: await freePort(),
        tls: writeIssued(authority.issue({ names: [host, '127.0.0.1'] })),
      })),
    );
    const start = ({ port, tls }: (typeof places)[number]) =>
      spawnServer({
        database: database.url,
        listen: `127.0.0.1:${port}`,
        args: ['--lame-duck', `${LAME_DUCK_SECONDS}`, '--tls-cert', tls.tlsCert, '--tls-key', tls.tlsKey],
      });
    await using stack = new AsyncDisposableStack();
    const servers = await Promise.all(places.map(start));
    stack.defer(async () => void (await Promise.all(servers.map((server) => server.kill()))));
    await using balancer = await startBalancer(
      authority,
      places.map(({ port }) => port),
    );
    await balancer.serving(2);
    const { address } = balancer;
    const client = connectClient({ address: `https://${address}`, ca: authority.cert });
    const create = async (name: string) => (await client.trajectories.createTrajectory({ name })).trajectory!.id;
    const begin = async (name: string): Promise<Begun> => ({
      name,
      unary: await create(`${name}, calls`),
      streamed: await create(`${name}, streams`),
    });
    const python = [path.join(import.meta.dirname, 'python/append.py'), address, ca];
    const credentials = grpc.credentials.createSsl(Buffer.from(authority.cert));
    const transport = createGrpcJsTransport(address, credentials);
    stack.defer(() => transport.close());
    const grpcJs = createClient(TrajectoryService, transport);
    const names = ['grpcio', 'grpc-go', 'grpc-js', 'the TypeScript client'];
    const [first, second, third, fourth] = (await Promise.all(names.map(begin))) as [Begun, Begun, Begun, Begun];
    const all = [
      appendElsewhere(first, PYTHON, python, { PYTHONPATH: PYTHON_PATH, PYTHONUTF8: '1' }),
      appendElsewhere(second, inject('goClient'), ['append', address, ca]),
      appendHere(third, grpcJs, overCalls(grpcJs)),
      appendHere(fourth, client.trajectories, byWriter(client)),
    ];
    stack.defer(() => {
      for (const { stop } of all) stop();
    });
    const failed = Promise.all(all.map(({ ended }) => ended));
    failed.catch(() => undefined); // for when nothing waits for it
    const progress = async () => {
      const before = all.map(({ counts }) => ({ ...counts }));
      const isBehind = () =>
        all.some(
          ({ counts }, i) => counts.unary < before[i]!.unary + PROGRESS || counts.stream < before[i]!.stream + PROGRESS,
        );
      while (isBehind()) await Promise.race([delay(20), failed]);
    };
    const drained: number[] = [];
    const drainedStreams = () => all.reduce((sum, { counts }) => sum + counts.drained, 0);
    for (let drain = 0; drain < DRAINS; drain += 1) {
      await progress();
      const [i, before] = [drain % 2, drainedStreams()];
      expect(await Promise.race([servers[i]!.terminate(), failed])).toEqual({ code: 0, signal: null });
      await progress();
      drained.push(drainedStreams() - before);
      servers[i] = await start(places[i]!);
      await balancer.serving(2);
    }
    await progress();
    for (const { stop } of all) stop();
    await failed;
    // Streams stay where they are, so from the second drain on they are on the server that stops.
    expect(Math.max(...drained), 'no stream was on a server that stopped').toBeGreaterThan(0);
    for (const { name, unary, streamed, counts } of all) {
      for (const [trajectoryId, count] of [
        [unary, counts.unary],
        [streamed, counts.stream],
      ] as const) {
        const found: string[] = [];
        for await (const { step } of readSteps(client, { trajectoryId })) found.push(step.infoJson);
        expect(found, name).toEqual(Array.from({ length: count }, (_, number) => `${number}`));
      }
    }
    await requireIntact(client);
    client.close();
  },
  TEST_MS,
);
