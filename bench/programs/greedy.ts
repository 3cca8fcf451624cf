import { createClient, type Transport } from '@connectrpc/connect';
import { createConnectTransport, createGrpcTransport } from '@connectrpc/connect-node';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
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
   * trajectory with the best rewards. `backups`: bytes of copies of the database.
   */
  readonly task: 'steps' | 'metrics' | 'lists' | 'backups';
  readonly trajectoryId: string;
  readonly runId: string;
  readonly callers: number;
  readonly seconds: number;
}

export interface GreedyFigures {
  /** Steps, points, lists or bytes per second. */
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
    while (performance.now() < end) for await (const some of readOnce(transport, settings)) items += some;
  };
  await Promise.all(Array.from({ length: settings.callers }, caller));
  return { perSecond: items / ((performance.now() - begun) / 1000) };
});

async function* readOnce(transport: Transport, { task, trajectoryId, runId }: GreedySettings): AsyncGenerator<number> {
  const trajectories = createClient(TrajectoryService, transport);
  if (task === 'steps') {
    for await (const { steps } of trajectories.readSteps({ trajectoryId })) yield steps.length;
  } else if (task === 'metrics') {
    for await (const { series } of createClient(RunService, transport).readMetrics({ runIds: [runId] })) {
      yield series.reduce((points, { values }) => points + values.length, 0);
    }
  } else if (task === 'backups') {
    for await (const { chunk } of createClient(AdminService, transport).backupDatabase({})) yield chunk.length;
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
