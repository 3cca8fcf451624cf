import { create } from '@bufbuild/protobuf';
import {
  type AdminService,
  type ExportArchiveRequest,
  type ExportArchiveResponse,
  ExportArchiveResponseSchema,
  type ImportArchiveRequest,
  ImportArchiveRequestSchema,
} from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import { writeArchive } from '../../archive/write.ts';
import type { ArchivePart, ArchiveScope, ImportProgress } from '../../domain/archive.ts';
import { StepFrames } from '../../domain/step_codec/frames.ts';
import type { Call, ClientStream } from '../method.ts';

/** V5. Errors: RUN_NOT_FOUND, TRAJECTORY_NOT_FOUND, STEP_CORRUPT, STATE_CORRUPT, SERVER_DRAINING. */
export async function* exportArchive(
  request: ExportArchiveRequest,
  { app, caller }: Call,
): AsyncGenerator<ExportArchiveResponse, void, undefined> {
  let steps = 0n;
  async function* counted(parts: AsyncIterable<ArchivePart>): AsyncGenerator<ArchivePart, void, undefined> {
    for await (const part of parts) {
      app.drain.throwIfBegun();
      if (part.kind === 'steps') for (const frames = new StepFrames(part.bytes); frames.next(); ) steps += 1n;
      yield part;
    }
  }
  for await (const chunk of writeArchive(counted(app.store.exportArchive(caller.namespace, scopeOf(request))))) {
    yield create(ExportArchiveResponseSchema, { chunk, steps });
  }
}

function scopeOf({ runId, trajectoryId }: ExportArchiveRequest): ArchiveScope {
  if (runId !== '') return { kind: 'run', id: runId };
  return trajectoryId === '' ? { kind: 'namespace' } : { kind: 'trajectory', id: trajectoryId };
}

/**
 * V6. Errors: ARCHIVE_INVALID, IMPORT_CONFLICT, IMPORT_SUPERSEDED, BRANCH_TOO_DEEP, STORAGE_FULL, SERVER_DRAINING.
 */
export const importArchive: ClientStream<(typeof AdminService)['method']['importArchive']> = async (frames, call) => {
  const { app, caller, signal } = call;
  const leave = await app.imports.enter(signal);
  let last: ImportProgress | undefined;
  try {
    const parts = app.store.readArchive(chunksOf(frames, call));
    for await (const progress of app.store.importArchive(caller.namespace, parts)) last = progress;
  } finally {
    leave();
  }
  const { leftOut = [], identicalTrajectories: _, ...counts } = last ?? {};
  return { ...counts, leftOutIds: [...leftOut] };
};

/** A2: an import that waits for its client does not delay a shutdown. */
async function* chunksOf(
  frames: AsyncIterable<ImportArchiveRequest>,
  { app, check }: Call,
): AsyncGenerator<Uint8Array, void, undefined> {
  const iterator = frames[Symbol.asyncIterator]();
  const paced = app.imports.pace();
  for (;;) {
    const next = await paced(app.drain.race(iterator.next()), ({ value }) => value?.chunk.length ?? 0);
    if (next.done === true) return;
    check(ImportArchiveRequestSchema, next.value);
    yield next.value.chunk;
  }
}
