import { createReadStream, createWriteStream } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { program } from './program.ts';

/** Exports a trajectory, or imports an archive, once. */
export interface ArchiveSettings {
  readonly address: string;
  readonly task: 'export' | 'import';
  readonly trajectoryId: string;
  /** The archive to write or to read. Empty: an export is not stored. */
  readonly file: string;
}

export interface ArchiveFigures {
  readonly stepsPerSecond: number;
  readonly steps: number;
  readonly bytes: number;
}

const CHUNK_BYTES = 256 * 1024;

await program(async ({ address, task, trajectoryId, file }: ArchiveSettings): Promise<ArchiveFigures> => {
  const admin = createClient(AdminService, createGrpcTransport({ baseUrl: `http://${address}` }));
  const begun = performance.now();
  let [steps, bytes] = [0, 0];
  if (task === 'export') {
    const chunks = (async function* () {
      for await (const response of admin.exportArchive({ trajectoryId })) {
        steps = Number(response.steps);
        bytes += response.chunk.length;
        yield response.chunk;
      }
    })();
    if (file === '') for await (const _ of chunks);
    else await pipeline(chunks, createWriteStream(file));
  } else {
    const chunks = (async function* () {
      for await (const chunk of createReadStream(file, { highWaterMark: CHUNK_BYTES })) {
        bytes += chunk.length;
        yield { chunk };
      }
    })();
    steps = Number((await admin.importArchive(chunks)).steps);
  }
  return { stepsPerSecond: (steps * 1000) / (performance.now() - begun), steps, bytes };
});
