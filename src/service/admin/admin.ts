import { create, type MessageInitShape } from '@bufbuild/protobuf';
import {
  type AdminService,
  type BackupDatabaseRequest,
  type BackupDatabaseResponse,
  BackupDatabaseResponseSchema,
  type DeleteNamespaceRequest,
  type DeleteNamespaceResponse,
  DeleteNamespaceResponseSchema,
  type ExportArchiveRequest,
  type ExportArchiveResponse,
  ExportArchiveResponseSchema,
  type ImportArchiveRequest,
  ImportArchiveRequestSchema,
  StorageCheck,
  type StorageFaultSchema,
  type VacuumDatabaseRequest,
  type VacuumDatabaseResponse,
  VacuumDatabaseResponseSchema,
  type VerifyDatabaseRequest,
  type VerifyDatabaseResponse,
  VerifyDatabaseResponseSchema,
} from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import { writeArchive } from '../../archive/write.ts';
import type { ArchivePart, ArchiveScope, ImportProgress } from '../../domain/archive.ts';
import { AnabranchError } from '../../domain/errors.ts';
import { StepFrames } from '../../domain/step_codec/frames.ts';
import type { StorageFault, VerificationProgress } from '../../domain/verification.ts';
import type { ShrinkableFile } from '../../stream/free_space.ts';
import type { Call, ClientStream, Methods, Unary } from '../method.ts';
import { forgetDeleted } from '../run/run.ts';
import { keyMethods } from './keys.ts';

export function adminMethods(database: DatabaseParts): Methods<typeof AdminService, keyof typeof AdminService.method> {
  return {
    getDatabaseStats: getDatabaseStats(database),
    verifyDatabase: { messages: verifyDatabase },
    backupDatabase: { messages: backupDatabase(database.file) },
    exportArchive: { messages: exportArchive },
    importArchive,
    vacuumDatabase: { messages: vacuumDatabase(database.file) },
    deleteNamespace: { messages: deleteNamespace },
    ...keyMethods,
  };
}

/** What AdminService needs besides the store. */
export interface DatabaseParts {
  /** Bytes on disk, and those of them that are free for new rows, if the database tells. */
  readonly sizeOf: () => Promise<{ readonly bytes: bigint; readonly freeBytes: bigint | undefined }>;
  /** Undefined on Postgres. */
  readonly file: DatabaseFile | undefined;
}

/** The file of an SQLite database, for work on the file as a whole. */
interface DatabaseFile extends ShrinkableFile {
  /**
   * V2: copies the file of one moment while writers continue, and then returns its bytes. One copy at a time. Errors:
   * BACKUP_IN_PROGRESS, STORAGE_FULL.
   */
  backUp(signal: AbortSignal): AsyncGenerator<BackupPiece, void, undefined>;
  /** V3. Errors: STORAGE_FULL, DATABASE_UNAVAILABLE. */
  vacuum(signal: AbortSignal, keepBytes: number): AsyncGenerator<VacuumProgress, void, undefined>;
}

/** How far the copy has come, then its bytes, then their digest. */
export interface BackupPiece {
  readonly copiedBytes: bigint;
  readonly totalBytes: bigint;
  readonly chunk?: Uint8Array;
  /** SHA-256, set in the last piece. */
  readonly digest?: string;
}

/** Free space that was returned, and that is left to return. */
export interface VacuumProgress {
  readonly freedBytes: bigint;
  readonly freeBytes: bigint;
}

/** Errors: SQLITE_ONLY. `instead` is what to do on Postgres. */
function sqliteOnly(instead: string): AnabranchError {
  return new AnabranchError(
    'SQLITE_ONLY',
    `The database of this server is Postgres, and the call works on SQLite only. ${instead}: see docs/operations.md.`,
  );
}

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
  const leave = await app.imports.enter(caller.actor, signal);
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

/** V2. Errors: SQLITE_ONLY, BACKUP_IN_PROGRESS, STORAGE_FULL, SERVER_DRAINING. */
export function backupDatabase(file: DatabaseFile | undefined) {
  return async function* (
    _request: BackupDatabaseRequest,
    { app, signal }: Call,
  ): AsyncGenerator<BackupDatabaseResponse, void, undefined> {
    if (file === undefined) throw sqliteOnly('Back it up with pg_dump, or with the tools of its cluster');
    for await (const piece of file.backUp(signal)) {
      app.drain.throwIfBegun();
      yield create(BackupDatabaseResponseSchema, piece);
    }
  };
}

/** V4. */
export function getDatabaseStats({
  sizeOf,
}: Pick<DatabaseParts, 'sizeOf'>): Unary<(typeof AdminService)['method']['getDatabaseStats']> {
  return async (_request, { app, caller }) => {
    const [counts, largestRuns, { bytes, freeBytes }] = await Promise.all([
      app.store.countRows(),
      app.store.findLargestRuns(caller.namespace),
      sizeOf(),
    ]);
    return { ...counts, largestRuns: [...largestRuns], bytes, ...(freeBytes === undefined ? {} : { freeBytes }) };
  };
}

/** V3. Errors: SQLITE_ONLY, STORAGE_FULL, SERVER_DRAINING. */
export function vacuumDatabase(file: DatabaseFile | undefined) {
  return async function* (
    _request: VacuumDatabaseRequest,
    { app, signal }: Call,
  ): AsyncGenerator<VacuumDatabaseResponse, void, undefined> {
    if (file === undefined) throw sqliteOnly('Its autovacuum reuses the space of deleted rows');
    for await (const progress of file.vacuum(signal, 0)) {
      app.drain.throwIfBegun();
      yield create(VacuumDatabaseResponseSchema, progress);
    }
  };
}

/** B6. Errors: RUN_ACTIVE, SERVER_DRAINING. */
export async function* deleteNamespace(
  { name, cancelLive }: DeleteNamespaceRequest,
  { app }: Call,
): AsyncGenerator<DeleteNamespaceResponse, void, undefined> {
  let [deletedRuns, deletedTrajectories] = [0n, 0n];
  for await (const part of app.store.deleteNamespace(name, cancelLive)) {
    forgetDeleted(app, part);
    app.drain.throwIfBegun();
    deletedRuns += part.runs;
    deletedTrajectories += part.trajectories;
    yield create(DeleteNamespaceResponseSchema, { deletedRuns, deletedTrajectories });
  }
  yield create(DeleteNamespaceResponseSchema, { deletedRuns, deletedTrajectories });
}

/** Faults in one message. */
const MOST_FAULTS = 100;

/** Progress without faults is sent this often at most. */
const PROGRESS_MS = 100;

/** V1. Errors: SERVER_DRAINING. */
export async function* verifyDatabase(
  _request: VerifyDatabaseRequest,
  { app }: Call,
): AsyncGenerator<VerifyDatabaseResponse, void, undefined> {
  let last: VerificationProgress | undefined;
  let sentAt = 0;
  for await (const progress of app.store.verify()) {
    app.drain.throwIfBegun();
    last = { ...progress, faults: [] };
    const { faults } = progress;
    for (let at = 0; at < faults.length; at += MOST_FAULTS) {
      yield response({ ...progress, faults: faults.slice(at, at + MOST_FAULTS) });
    }
    if (performance.now() - sentAt < PROGRESS_MS) continue;
    sentAt = performance.now();
    yield response(last);
  }
  if (last !== undefined) yield response(last);
}

function response({ faults, ...progress }: VerificationProgress): VerifyDatabaseResponse {
  return create(VerifyDatabaseResponseSchema, { ...progress, faults: faults.map(fromFault) });
}

function fromFault({ check, ...fault }: StorageFault): MessageInitShape<typeof StorageFaultSchema> {
  return { ...fault, check: StorageCheck[check] };
}
