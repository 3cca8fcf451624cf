/** A small tree with fixed ids, for drawings compared with files. */
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { type AnabranchClient, openWriter, type SealStatus } from '../../src/client/index.ts';

export const treeId = (n: number) => `01990000-0000-7000-8000-${String(n).padStart(12, '0')}`;

export const MAIN_LINE = treeId(1);
export const GENTLE = treeId(2);
export const HASTY = treeId(3);
export const LATE = treeId(4);

/**
 * A main line of 31 steps. `gentle` and `hasty` branch at step 10 (tagged `fork`), `late` at step 20 of gentle. hasty
 * failed, late is RUNNING.
 */
export async function plantTree(client: AnabranchClient): Promise<void> {
  await client.trajectories.createTrajectory({
    trajectoryId: MAIN_LINE,
    name: 'main line',
    root: { stepNumber: 0n, observations: [{ type: 'text', content: { text: 'a river' } }] },
  });
  await grow(client, MAIN_LINE, 30, { reward: 1, seal: Status.COMPLETED });
  await client.trajectories.setTag({ trajectoryId: MAIN_LINE, name: 'fork', stepNumber: 10n });
  await branch(client, { from: MAIN_LINE, at: 10n, id: GENTLE, name: 'gentle' });
  await grow(client, GENTLE, 15, { reward: 0.5, seal: Status.COMPLETED });
  await branch(client, { from: MAIN_LINE, at: 10n, id: HASTY, name: 'hasty' });
  await grow(client, HASTY, 3, { reward: -1, seal: Status.FAILED });
  await branch(client, { from: GENTLE, at: 20n, id: LATE, name: 'late 日本語' });
  await grow(client, LATE, 2, { reward: 2.25 });
}

interface Branch {
  readonly from: string;
  readonly at: bigint;
  readonly id: string;
  readonly name: string;
}

async function branch(client: AnabranchClient, { from, at, id, name }: Branch): Promise<void> {
  await client.trajectories.branchTrajectory({ trajectoryId: from, stepNumber: at, branchId: id, name });
}

export async function grow(
  client: AnabranchClient,
  trajectoryId: string,
  steps: number,
  { reward, seal }: { reward: number; seal?: SealStatus },
): Promise<void> {
  await using writer = await openWriter(client, { trajectoryId });
  for (let i = 0; i < steps; i++) {
    const stepNumber = writer.nextStepNumber;
    void writer.append({
      actions: [
        { type: 'tool_call', name: 'paddle', content: { json: `{"side":"${i % 2 === 0 ? 'left' : 'right'}"}` } },
      ],
      observations: [{ type: 'text', content: { text: `bend ${stepNumber}` } }],
      reward,
      terminated: seal !== undefined && i === steps - 1,
      states: stepNumber % 10n === 0n ? { env: new TextEncoder().encode(`at ${stepNumber}`) } : {},
    });
  }
  await writer.flush();
  if (seal !== undefined) await writer.seal(seal, seal === Status.FAILED ? 'ran aground' : '');
}
