import { createClient, type Transport } from '@connectrpc/connect';
import { createConnectTransport, createGrpcTransport } from '@connectrpc/connect-node';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { RetentionService } from '../../gen/es/anabranch/v1/retention_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { StepOrder, TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { program } from './program.ts';

/** A reader without pauses: callers that repeat the same read as soon as it ends. */
export interface GreedySettings {
  readonly address: string;
  readonly protocol: 'connect' | 'grpc';
  /**
   * `steps`: all steps of the trajectory, FULL. `metrics`: all points of the run. `lists`: the 50 steps of the
   * trajectory with the best rewards. `backups`: bytes of copies of the database. `exports`: steps of archives of the
   * trajectory. `retention`: states of the experiment that are removed.
   */
  readonly task: 'steps' | 'metrics' | 'lists' | 'backups' | 'exports' | 'retention';
  readonly trajectoryId: string;
  readonly experimentId: string;
  readonly runId: string;
  readonly callers: number;
  readonly seconds: number;
}

export interface GreedyFigures {
  /** Steps, points, lists, bytes or states, and how many of them per second. */
  readonly items: number;
  readonly perSecond: number;
}

await program(async (settings: GreedySettings): Promise<GreedyFigures> => {
  const baseUrl = `http://${settings.address}`;
  const transport =
    settings.protocol === 'connect'
      ? createConnectTransport({ baseUrl, httpVersion: '2' })
      : createGrpcTransport({ baseUrl });
  const begun = performance.now();
  const end = begun + settings.seconds * 1000;
  let items = 0;
  const caller = async () => {
    while (performance.now() < end) {
      for await (const some of readOnce(transport, settings)) {
        items += some;
        if (performance.now() >= end) return;
      }
    }
  };
  await Promise.all(Array.from({ length: settings.callers }, caller));
  return { items, perSecond: items / ((performance.now() - begun) / 1000) };
});

async function* readOnce(
  transport: Transport,
  { task, trajectoryId, experimentId, runId }: GreedySettings,
): AsyncGenerator<number> {
  const trajectories = createClient(TrajectoryService, transport);
  if (task === 'steps') {
    for await (const { steps } of trajectories.readSteps({ trajectoryId })) yield steps.length;
  } else if (task === 'metrics') {
    for await (const { series } of createClient(RunService, transport).readMetrics({ runIds: [runId] })) {
      yield series.reduce((points, { values }) => points + values.length, 0);
    }
  } else if (task === 'backups') {
    for await (const { chunk } of createClient(AdminService, transport).backupDatabase({})) yield chunk.length;
  } else if (task === 'exports') {
    let last = 0n;
    for await (const { steps } of createClient(AdminService, transport).exportArchive({ trajectoryId })) {
      yield Number(steps - last);
      last = steps;
    }
  } else if (task === 'retention') {
    const states = { stateNames: ['env'] };
    const policy = { experimentId, states };
    for await (const { items } of createClient(RetentionService, transport).applyRetention({ policy })) {
      yield items.reduce((count, { stateNames }) => count + stateNames.length, 0);
    }
  } else {
    await trajectories.listSteps({
      trajectoryId,
      order: StepOrder.REWARD,
      descending: true,
      view: View.FULL,
      pageSize: 50,
    });
    yield 1;
  }
}
