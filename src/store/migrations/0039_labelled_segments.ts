import type { MigrationText } from './migration.ts';

const INDEX = `create index segments_with_labels on segments (tree, trajectory, first_step_number) where labels <> '[]'`;

/** An index by which a trajectory without labelled steps is passed over without reading its segments. */
export const migration0039: MigrationText = { name: '0039_labelled_segments', postgres: INDEX, sqlite: INDEX };
