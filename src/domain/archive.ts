import { AnabranchError } from './errors.ts';
import { type Digest, shorten } from './ids.ts';
import type { NewState } from './step.ts';

/** Name and version of the format that `docs/archive.md` describes. Readers refuse any other version. */
export const ARCHIVE_FORMAT = 'anabranch-archive';
export const ARCHIVE_VERSION = 3;

/** What an archive has: everything of a namespace, a run with its trajectories, or one trajectory. */
export type ArchiveScope =
  | { readonly kind: 'namespace' }
  | { readonly kind: 'run'; readonly id: string }
  | { readonly kind: 'trajectory'; readonly id: string };

/** JSON objects, one in each line. The line ends are part of the text. */
interface RecordsPart {
  readonly kind: 'records';
  readonly text: string;
}

/** Consecutive own steps of a trajectory: messages `Step`, each after its length. */
export interface StepsPart {
  readonly kind: 'steps';
  readonly trajectoryId: string;
  readonly firstStepNumber: bigint;
  readonly bytes: Uint8Array;
}

/** The states of the next part of steps that are stored with these steps, each once. */
export interface SmallStatesPart {
  readonly kind: 'small_states';
  readonly states: readonly NewState[];
}

/** Bytes of a state with a row of its own, or of a piece of it. All pieces of a state follow each other. */
export interface StatePart {
  readonly kind: 'state';
  readonly digest: Digest;
  readonly size: number;
  readonly offset: number;
  readonly bytes: Uint8Array;
}

/** A part of an archive, of bounded size. The order of parts is part of the format. */
export type ArchivePart = RecordsPart | StepsPart | SmallStatesPart | StatePart;

/** A line of an archive, parsed. */
export interface ArchiveRecord {
  /** What the line describes. */
  readonly record: string;
  readonly [name: string]: unknown;
}

/** Records of one kind, of bounded size. */
export interface CheckedRecords {
  readonly kind: 'checked_records';
  readonly records: readonly ArchiveRecord[];
  /** The text of a record that is no row. */
  readonly text: string;
}

/** A part whose values were checked. */
export interface CheckedPart {
  readonly checked: CheckedRecords | StepsPart | SmallStatesPart | StatePart;
}

/** What is imported: parts that an export yields, or that were read and checked. */
export type ImportedParts = AsyncIterable<ArchivePart | CheckedPart>;

/** What an export or an import has done so far. */
interface ArchiveCounts {
  readonly trajectories: bigint;
  readonly steps: bigint;
  readonly states: bigint;
  readonly runs: bigint;
  readonly rollouts: bigint;
}

export const NO_COUNTS: ArchiveCounts = { trajectories: 0n, steps: 0n, states: 0n, runs: 0n, rollouts: 0n };

/** How far an import has come. */
export interface ImportProgress extends ArchiveCounts {
  /** Trajectories that were stored already, with the same steps. */
  readonly presentTrajectories: bigint;
  /** Those of them that are equal in everything else, too: status, history, tags, times, lineage. */
  readonly identicalTrajectories: bigint;
  /** Ids of trajectories that were deleted during the export, so that the archive has no whole copy. */
  readonly leftOut: readonly string[];
}

/** How far a copy of a database has come. */
export interface CopyProgress {
  /** Steps that were copied or skipped, and those that were compared with the copy. */
  readonly doneSteps: bigint;
  /** Steps of the database to copy, and again to compare. Other namespaces count as done. */
  readonly totalSteps: bigint;
  readonly namespaces: readonly string[];
  readonly copied: ImportProgress;
  /** What was compared with the copy. */
  readonly verified: ImportProgress;
}

/** Characters of a place in an archive. */
const MOST_PLACE = 200;

/** `named` names the entry or the record. */
export function archiveInvalid(named: string, fault: string, cause?: unknown): AnabranchError {
  const place = shorten(named, MOST_PLACE);
  return new AnabranchError(
    'ARCHIVE_INVALID',
    `The archive is damaged or was not written by an export: ${place}: ${fault}. Resources before this place are imported. Export again, and import the new archive.`,
    { metadata: { place }, ...(cause === undefined ? {} : { cause }) },
  );
}

/** `what` is the resource with its id, and `conflict` what the store has instead. */
export function importConflict(
  what: string,
  conflict: string,
  remedy = 'Delete what is stored, or import into another database',
): AnabranchError {
  return new AnabranchError(
    'IMPORT_CONFLICT',
    `${what} cannot be imported: ${conflict}. Nothing stored was changed. ${remedy}.`,
    { metadata: { resource: what } },
  );
}

export function importSuperseded(trajectoryId: string): AnabranchError {
  return new AnabranchError(
    'IMPORT_SUPERSEDED',
    `Trajectory ${trajectoryId} is being imported by another call, or this import was idle for a day. Import the archive again when no other import runs: what is complete is skipped.`,
    { metadata: { trajectory_id: trajectoryId } },
  );
}
