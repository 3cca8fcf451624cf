import { parseAddress } from './address.ts';
import { LATER } from './later.ts';
import { EarlySource } from './watch/early_source.ts';
import { firstSubjects } from './watch/first_subjects.ts';
import { connectSource } from './watch/shared.ts';

/**
 * The first script of the page, small and without descriptors. While everything else loads, the server already reads
 * what the view in the address shows, and the view's own file is on its way.
 */

const address = parseAddress(location.pathname, location.search);
const isVisible = () => document.visibilityState === 'visible';

/** The watches of the view have begun, unless the tab is hidden. */
export const source = new EarlySource(connectSource(), isVisible() ? firstSubjects(address) : []);

// A hidden tab holds no watches.
document.addEventListener('visibilitychange', () => isVisible() || source.drop());

// The view loads it again, and shows a failure.
LATER[address.view]?.().catch(() => undefined);
