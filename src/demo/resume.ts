import type { AnabranchClient } from '../client/index.ts';
import type { DemoEvent } from './events.ts';
import { type ReportingProcess, startReportingProcess, withProcess } from './reporting_process.ts';
import { KILL_AFTER } from './variant.ts';
import type { VariantReport, VariantTask } from './variant_client.ts';

interface Surroundings {
  readonly client: AnabranchClient;
  readonly variantCommand: readonly string[];
  readonly onEvent: (event: DemoEvent) => void;
  readonly signal: AbortSignal;
}

/**
 * Plays a variant in a process that is killed with unacked steps. Then another process continues at the end of the
 * stored steps.
 */
export async function playKilledAndResumed(name: string, task: VariantTask, around: Surroundings): Promise<void> {
  const { client, variantCommand, onEvent } = around;
  const doomed = { ...task, hangAfter: Number(KILL_AFTER) };
  await withProcess(startReportingProcess<VariantReport>(variantCommand, doomed), around.signal, async (first) => {
    const onOpened = () => onEvent({ event: 'started', name, pid: first.pid });
    const hanging = await follow(first, 'hanging', { name, onEvent, onOpened });
    await first.kill();
    const { trajectory } = await client.trajectories.getTrajectory({ trajectoryId: task.trajectoryId });
    onEvent({
      event: 'killed',
      name,
      pid: first.pid,
      madeNextStepNumber: BigInt(hanging.nextStepNumber),
      ackedNextStepNumber: BigInt(hanging.ackedNextStepNumber),
      storedNextStepNumber: trajectory?.nextStepNumber ?? 0n,
    });
  });
  await withProcess(startReportingProcess<VariantReport>(variantCommand, task), around.signal, async (second) => {
    const { nextStepNumber, message } = await follow(second, 'sealed', {
      name,
      onEvent,
      onOpened: (opened) => {
        onEvent({ event: 'resumed', name, pid: second.pid, nextStepNumber: BigInt(opened.nextStepNumber) });
      },
    });
    await second.ended();
    onEvent({ event: 'sealed', name, nextStepNumber: BigInt(nextStepNumber), message });
  });
}

interface Following {
  readonly name: string;
  readonly onEvent: (event: DemoEvent) => void;
  readonly onOpened: (report: Extract<VariantReport, { event: 'opened' }>) => void;
}

/** Passes reports on until the expected one. A process that ends earlier has failed, and its error is thrown. */
async function follow<const E extends VariantReport['event']>(
  process: ReportingProcess<VariantReport>,
  until: E,
  { name, onEvent, onOpened }: Following,
): Promise<Extract<VariantReport, { event: E }>> {
  for await (const report of process.reports) {
    if (report.event === until) return report as Extract<VariantReport, { event: E }>;
    if (report.event === 'step') onEvent({ event: 'step', name, stepNumber: BigInt(report.stepNumber) });
    if (report.event === 'opened') onOpened(report);
  }
  await process.ended();
  throw new Error(`the process of variant "${name}" ended without the report "${until}"`);
}
