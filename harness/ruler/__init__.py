"""RULER-style tasks: find, follow and count things in a long text, decoded under every scanner from one prefill."""
