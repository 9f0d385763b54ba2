"""Small model servers on loopback, behind the real agents: each speaks one provider's protocol and plays a script."""
