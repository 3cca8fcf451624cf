import { create, type DescMessage, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { median, type Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { RequestFigures, RequestSettings } from '../programs/request.ts';
import type { UseCaseFigures, UseCaseSettings } from '../programs/use_case.ts';

/**
 * Calls an RPC of a new server each time, because SQLite allows one process per file. `rpc` is written as in
 * `RunService/ListRuns`.
 */
export async function measureRpc<Desc extends DescMessage>(
  run: Run,
  database: string,
  rpc: string,
  schema: Desc,
  init: MessageInitShape<Desc>,
  { pages, furtherRequests: more }: Pick<RequestSettings, 'pages' | 'furtherRequests'> = {},
) {
  const request = encoded(schema, init);
  let bytes = 0;
  return {
    async p50() {
      const server = await run.resources.server('real', run.engine, database);
      const figures = await runProgram<RequestFigures>('request', {
        address: server.address,
        method: `/anabranch.v1.${rpc}`,
        request,
        ...(pages && { pages }),
        ...(more && { furtherRequests: more }),
        warmupSeconds: run.warmupSeconds,
        seconds: run.seconds,
      } satisfies RequestSettings);
      await server.stop();
      bytes = figures.bytes;
      return figures.p50Ms;
    },
    note: () => `${bytes.toLocaleString('en-US')} B`,
  };
}

/** Measures the p50 of a call that does nothing, which is the cost of the wire alone. */
export function measureEmptyCall(run: Run) {
  const samples: number[] = [];
  return {
    async p50() {
      const server = await run.resources.server('null', run.engine);
      const { warmupSeconds, seconds } = run;
      const method = '/grpc.health.v1.Health/Check';
      const settings: RequestSettings = { address: server.address, method, request: '', warmupSeconds, seconds };
      const { p50Ms } = await runProgram<RequestFigures>('request', settings);
      await server.stop();
      samples.push(p50Ms);
      return p50Ms;
    },
    note: () => `a call that does nothing: ${median(samples).toFixed(2)} ms`,
  };
}

/** Measures the p50 of the use case in one process, without the wire, alternating with hand-written SQL. */
export function measureUseCase(run: Run, database: string, task: UseCaseSettings['task']) {
  const byHand: number[] = [];
  return {
    async p50() {
      const { warmupSeconds, seconds } = run;
      const settings: UseCaseSettings = { task, database, warmupSeconds, seconds };
      const { p50Ms, byHandP50Ms } = await runProgram<UseCaseFigures>('use_case', settings);
      byHand.push(byHandP50Ms);
      return p50Ms;
    },
    /** One value per round. */
    byHand,
  };
}

/** Encodes a request for the programs. */
export function encoded<Desc extends DescMessage>(schema: Desc, init: MessageInitShape<Desc>): string {
  return Buffer.from(toBinary(schema, create(schema, init))).toString('base64');
}
