"""Continuous batching: requests join and leave a running batch at every step."""

from anyformer.generation.batching.batcher import Batcher as Batcher
from anyformer.generation.batching.stats import Stats as Stats
from anyformer.generation.batching.ticket import Event as Event
from anyformer.generation.batching.ticket import Ticket as Ticket
