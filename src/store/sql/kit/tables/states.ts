import { assignedKey, bytes, flag, int, nullable, table, text, time, uuid, withDefault } from './table.ts';

/**
 * Invariants of a row:
 * - `referenced`: a step may refer to the state. An append that refers to the state sets it. The transaction that
 *   deletes its last row of `state_refs` resets it: it locks the row, and then looks for other references.
 * - `version` rises with every change of the row.
 * An append neither locks nor changes a state that is referenced already. The collector makes this safe in three steps:
 * 1. It selects states that are not referenced, and their versions.
 * 2. It waits until all appends have ended that looked up states before (`StateRows.outwaitReferrers`), and then looks
 *    for references to the selected states. An append that found one while it was referenced has added a reference,
 *    maybe after the row was reset.
 * 3. It deletes selected states without references whose versions are unchanged. An append that found such a state
 *    later found it unreferenced, and changed its version.
 *
 * A state with a base is compressed with the base's bytes as dictionary. No base is deleted before the states that
 * depend on it: an append locks the base's row before it stores the dependent, and the collector looks for dependents
 * under the lock of the row that it deletes. A base that has dependents is marked `collected` instead, and deleted once
 * the collector has rewritten them.
 */
export const STATES = table('states', {
  key: assignedKey,
  namespace: text,
  digest: bytes,
  size: int,
  /** `raw`, or `zstd` with the base's bytes, if there is a base, as dictionary. */
  encoding: text,
  /** Digest of a state of the same namespace, or null for a state that is stored whole. */
  base: nullable(bytes),
  /** Upper bounds of the number and the total size of the direct and indirect bases. */
  depth: withDefault(int),
  base_bytes: withDefault(int),
  /** Exists only as a base: neither read nor referenced. */
  collected: withDefault(flag),
  /** The upload whose chunks hold the state, or null. */
  upload: nullable(uuid),
  referenced: flag,
  version: int,
  renew_time: time,
  /**
   * The whole state; null if it is stored in chunks. The last column, because SQLite reads what is before a column to
   * find it.
   */
  data: nullable(bytes),
});

export const STATE_UPLOADS = table('state_uploads', {
  upload: uuid,
  namespace: text,
  renew_time: time,
});

export const STATE_CHUNKS = table('state_chunks', {
  upload: uuid,
  ordinal: int,
  namespace: text,
  digest: bytes,
  size: int,
  encoding: text,
  /**
   * The upload whose chunk of the same ordinal has the bytes or, for a chunk with `data`, the dictionary of them. Null
   * for a chunk that is stored whole.
   */
  piece_upload: nullable(uuid),
  data: nullable(bytes),
});
