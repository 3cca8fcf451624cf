import { randomUUID } from 'node:crypto';
import { create, toBinary } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import { type Step, StepSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { AppendStepsRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, connectClient, readSteps } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';
import { startTestServer } from '../support/test-server.ts';
import { AppendCall } from '../wire/append-call.ts';

/** The situations that test/faults/several-servers.test.ts reaches by chance, each once and on purpose. */
describe.each(ENGINES)('bytes of a dead connection that arrive late, on %s', (engine) => {
  it.each([
    ['has written', 3],
    ['was granted and has not written yet', 0],
  ])('F1, W2: are refused once another writer %s', async (_, written) => {
    await using database = await createMigratedDatabase(engine);
    await using older = await startTestServer({ database });
    // SQLite allows one process: there the newer writer uses the same server.
    await using newer = engine === 'postgres' ? await startTestServer({ database }) : undefined;
    await using proxy = await startTcpProxy(older);
    await using held = open(proxy.url);
    await using free = open((newer ?? older).url);
    const trajectoryId = randomUUID();
    await free.client.trajectories.createTrajectory({ trajectoryId });

    const first = await AppendCall.open(held.client.trajectories, { trajectoryId, writerId: 'first' });
    await first.call.append(stepsOf('first', 0, 5));
    proxy.hold();
    const late = create(AppendStepsRequestSchema, { steps: stepsOf('first', 5, 10) });
    first.call.send(late);
    const size = toBinary(AppendStepsRequestSchema, late).length;
    await expect.poll(() => proxy.held(), { interval: 2 }).toBeGreaterThan(size);
    proxy.cutClients();
    await first.call.cut();

    const takeOverEpoch = first.opened.epoch;
    const second = await AppendCall.open(free.client.trajectories, { trajectoryId, writerId: 'second', takeOverEpoch });
    expect(second.opened.nextStepNumber).toBe(5n);
    if (written > 0) await second.call.append(stepsOf('second', 5, 5 + written));

    // The older stream is still open on its server, which does not notice the cut until the late frame reaches the
    // newer epoch.
    const handlers = () => older.counts().handlers;
    expect(handlers()).toBe(newer === undefined ? 2 : 1);
    await proxy.release();
    await expect.poll(handlers, { interval: 2, timeout: 10_000 }).toBe(newer === undefined ? 1 : 0);

    await second.call.append(stepsOf('second', 5 + written, 10));
    await second.call.close();
    expect(await stored(free.client, trajectoryId)).toEqual(
      [...'fffffsssss'].map((by) => (by === 'f' ? 'first' : 'second')),
    );
  });
});

function open(address: string): { client: AnabranchClient } & AsyncDisposable {
  const client = connectClient({ address });
  return { client, [Symbol.asyncDispose]: async () => client.close() };
}

function stepsOf(writer: string, from: number, to: number): Step[] {
  return Array.from({ length: to - from }, (_, i) =>
    create(StepSchema, { stepNumber: BigInt(from + i), infoJson: JSON.stringify(writer) }),
  );
}

async function stored(client: AnabranchClient, trajectoryId: string): Promise<unknown[]> {
  const writers: unknown[] = [];
  for await (const { step } of readSteps(client, { trajectoryId })) writers.push(JSON.parse(step.infoJson));
  return writers;
}
