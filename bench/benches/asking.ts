import { create, type DescMessage, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import type { Run } from '../bench.ts';
import { runProgram } from '../processes.ts';
import type { AskFigures, AskSettings } from '../programs/ask.ts';

/** Asks a server of its own each time: SQLite has one process a file. `rpc` is as in `RunService/ListRuns`. */
export async function asking<Desc extends DescMessage>(
  run: Run,
  database: string,
  rpc: string,
  schema: Desc,
  init: MessageInitShape<Desc>,
  { pages, more }: Pick<AskSettings, 'pages' | 'more'> = {},
) {
  const request = encoded(schema, init);
  let bytes = 0;
  return {
    async p50() {
      const server = await run.place.server('real', run.engine, database);
      const figures = await runProgram<AskFigures>('ask', {
        address: server.address,
        method: `/anabranch.v1.${rpc}`,
        request,
        ...(pages && { pages }),
        ...(more && { more }),
        warmupSeconds: run.warmupSeconds,
        seconds: run.seconds,
      } satisfies AskSettings);
      await server.stop();
      bytes = figures.bytes;
      return figures.p50Ms;
    },
    note: () => `${bytes.toLocaleString('en-US')} B`,
  };
}

/** A request as programs take it. */
export function encoded<Desc extends DescMessage>(schema: Desc, init: MessageInitShape<Desc>): string {
  return Buffer.from(toBinary(schema, create(schema, init))).toString('base64');
}
